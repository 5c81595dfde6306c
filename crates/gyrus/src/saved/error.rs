use std::io;

/// Why a session could not be saved to a file or loaded from one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionFileError {
    /// The file could not be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file does not begin like a saved session.
    #[error("it is no saved session: it begins with \"{begins}\"")]
    NotASession {
        /// Its first bytes.
        begins: String,
    },
    /// The file is of another version of this format.
    #[error("it is a saved session of version {found}, and only version {known} is known")]
    Version {
        /// The version of the file.
        found: u32,
        /// The version that can be read.
        known: u32,
    },
    /// The file is shorter or longer than its header says.
    #[error("it has {found} bytes, but its header says {expected}: it is incomplete or damaged")]
    Length {
        /// Bytes of the file.
        found: u64,
        /// Bytes that it must have.
        expected: u64,
    },
    /// The file became shorter while it was read.
    #[error("it became shorter while it was read")]
    Shortened,
    /// A part of the file does not have its checksum.
    #[error("{part} is damaged: the checksum of the bytes from {at} on differs")]
    Damaged {
        /// The part.
        part: String,
        /// The offset of its first byte.
        at: u64,
    },
    /// A field of the header is missing or impossible.
    #[error("its header is malformed: {0}")]
    Header(String),
    /// The session is of another model.
    #[error("it is a session of another model: of {saved}, but this is {here}")]
    Model {
        /// The name and fingerprint of the model in the file.
        saved: String,
        /// The name and fingerprint of this model.
        here: String,
    },
    /// The session was computed in another way.
    #[error("its {what} is {saved}, but here it is {here}: the cache would have other bits")]
    Setting {
        /// What differs.
        what: &'static str,
        /// As it was when the session was saved.
        saved: String,
        /// As it is here.
        here: String,
    },
    /// The model was loaded without a fingerprint.
    #[error("the model was loaded without a fingerprint: Options::session_files is needed")]
    NoFingerprint,
    /// The backend cannot give or take the contents of its cache.
    #[error("sessions cannot be saved on {0}")]
    Device(String),
    /// The device was lost while the session was saved or loaded.
    #[error("the device was lost meanwhile")]
    Lost,
}
