//! The description of a forward pass, independent of the backend that runs it.
//!
//! A [`Plan`] is a flat table of fused [`Op`]s over numbered buffers and weights, built once per model and replayed for
//! every [`Batch`] of token rows. Backends execute it. [`scalar`] holds the scalar twin of every op, the definition
//! that backends are tested against, and [`scalar::Reference`] runs a whole plan with them. [`call`] describes the GPU
//! kernels: each call is checked and becomes a [`Launch`] of a WGSL kernel under `wgsl/`. [`Rope`] is the engine's one
//! implementation of rotary embeddings; [`abi`] has the published rope kernels that other programs call.
//!
//! This crate knows nothing of files, of models by name, or of any GPU API.

#![forbid(unsafe_code)]

pub mod abi;
mod backend;
mod bandwidth;
mod batch;
pub mod call;
mod contents;
mod delta;
mod draw;
pub mod grid;
mod host_slots;
mod kv;
mod launch;
mod log_softmax;
pub mod observe;
mod op;
pub mod params;
mod plan;
mod profile;
mod random;
mod rope;
mod sampler;
pub mod scalar;
mod select;
pub mod shader;
mod slots;
mod weights;

pub use backend::{Backend, BackendError};
pub use bandwidth::{Bandwidth, Level, Traffic};
pub use batch::{Batch, Demands, Inputs};
pub use contents::CacheContents;
pub use delta::{CONV_TAPS, DELTA_UNIT, DeltaLayer, DeltaShape, L2_EPS, MAX_DELTA_DIM, Records};
pub use host_slots::{DecodeRow, HOST_LIMITS, HostBackend, HostForward, HostSlots, PartEnd};
pub use kv::{KV_BLOCK, KvGroup, KvLayer, KvShape, KvSize, MAX_KV_GROUPS};
pub use launch::{Access, Launch, LaunchError, Slot};
pub use log_softmax::{LogSoftmax, add_to_top};
pub use op::{Activation, BufferId, HeadNorms, Op, RopeId, RouteWeights, Span, WeightId};
pub use plan::{
    BufferSpec, ENCODED, FileLayout, HIDDEN, LOGITS, Output, Plan, Precision, RowBlocks, Rows, SCORES,
    WeightSpec,
};
pub use profile::{Instruments, Profile, ProfileEntry, Trial, Workload};
pub use rope::{
    Direction, LongRope, Magnitude, Pairing, Phases, Rope, RopeError, RopeSpec, Scaling, Sections, Spectrum,
    Yarn, rotate_pair,
};
pub use sampler::chain::{Drawn, Past, SamplerScratch};
pub use sampler::{Breakers, Dry, DynamicTemperature, Mirostat, Order, Sampler, SamplerError, Stage, Xtc};
pub use select::{Counts, argmax, log_softmax_at};
pub use slots::{
    Chunk, Decode, Draft, Landed, Limits, LogitRows, MAX_ENDS, MAX_SLOTS, MAX_TOP, Outcome, RowKind, Slots,
    TopTokens, Work,
};
pub use weights::{Plane, Planes, WeightError, WeightLayout, repack};
