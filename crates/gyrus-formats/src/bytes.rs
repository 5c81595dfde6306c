use std::fs::File;
use std::io::{self, Read};
use std::ops::{Deref, Range};
use std::path::Path;

use memmap2::{Mmap, MmapMut};

/// How the files of a model are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Access {
    /// They are mapped: opened at once, read where they are touched, and their memory is shared with other processes.
    /// A file that another process shortens meanwhile ends this one with SIGBUS.
    #[default]
    Map,
    /// They are read into memory, after which what happens to them does not matter.
    Read,
}

/// The bytes of a model file.
#[derive(Debug)]
pub enum Bytes {
    /// A file mapped into memory; pages are read when touched.
    Mapped(Mmap),
    /// A file read into memory of its own, aligned to pages as a mapped one is.
    Read(Mmap),
    /// Bytes in memory.
    Owned(Vec<u8>),
    /// Bytes embedded in the program.
    Static(&'static [u8]),
}

impl Bytes {
    /// Maps or reads a regular file. Anything else (a folder, a device, a pipe) is refused before it is opened,
    /// since opening a pipe would wait for a writer.
    pub(crate) fn open(path: &Path, access: Access) -> io::Result<Bytes> {
        let kind = std::fs::metadata(path)?.file_type();
        if !kind.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, not_regular(kind)));
        }
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        if length == 0 {
            // An empty range cannot be mapped.
            return Ok(Bytes::Static(&[]));
        }
        if access == Access::Read {
            return read(&file, length).map(Bytes::Read);
        }
        // SAFETY: the mapping is read-only and shared (MAP_SHARED), so that all processes with this model have one
        // copy of it. Two promises we cannot keep for the caller. That no other process shortens the file meanwhile:
        // that ends the process with SIGBUS, as it does for every program that maps files, and as it would were the
        // mapping private. That none writes to it: all parsing copies what it decides by, so a changed file can give
        // wrong weights but no wrong bounds. `Access::Read` is for those who need both.
        #[allow(unsafe_code)]
        let map = unsafe { Mmap::map(&file)? };
        Ok(Bytes::Mapped(map))
    }
}

/// Reads a file of this length. Memory is asked for first, so that too little of it is an error and not the end.
fn read(mut file: &File, length: u64) -> io::Result<Mmap> {
    let length = usize::try_from(length).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    let mut memory = MmapMut::map_anon(length)?;
    file.read_exact(&mut memory)?;
    memory.make_read_only()
}

impl Bytes {
    /// Releases the resident pages of a range; a later access reads them from the file again. No effect on
    /// bytes that are not mapped.
    pub(crate) fn release(&self, range: Range<usize>) {
        let Bytes::Mapped(map) = self else { return };
        #[cfg(unix)]
        {
            // Whole pages only: the neighbours of the range may be in use.
            const PAGE: usize = 1 << 16;
            let (start, end) = (range.start.next_multiple_of(PAGE), range.end / PAGE * PAGE);
            if start < end && end <= map.len() {
                // SAFETY: the mapping is of a file and never written to, so its pages can be dropped and
                // read again without a change in what they hold. Failing to drop them costs memory only.
                #[allow(unsafe_code)]
                let _ = unsafe {
                    map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start)
                };
            }
        }
        #[cfg(not(unix))]
        let _ = (map, range);
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) | Bytes::Read(map) => map,
            Bytes::Owned(bytes) => bytes,
            Bytes::Static(bytes) => bytes,
        }
    }
}

fn not_regular(kind: std::fs::FileType) -> &'static str {
    if kind.is_dir() {
        return "is a folder, not a file";
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_char_device() || kind.is_block_device() {
            return "is a device, not a regular file";
        }
        if kind.is_fifo() {
            return "is a pipe, not a regular file";
        }
        if kind.is_socket() {
            return "is a socket, not a regular file";
        }
    }
    "is not a regular file"
}
