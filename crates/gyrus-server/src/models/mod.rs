//! The models of a server: which there are, which are loaded, and when they go.

mod entry;
mod lease;
mod pulls;
mod registry;
mod served;
mod source;

pub(crate) use entry::StateName;
pub(crate) use lease::Lease;
pub(crate) use pulls::PullStep;
pub(crate) use registry::{IDLE_BEFORE_RELEASE, Registry};
pub use served::{Purpose, Served};
pub use source::{Details, Listed, Pulled, Source, SourceError};
