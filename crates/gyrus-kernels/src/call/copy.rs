use crate::launch::{Access, Launch, LaunchError, Slot, grid};
use crate::params::ElementwiseParams;
use crate::shader::{Rungs, Variant};

/// Vectors of 16 bytes that a workgroup of [`read_sums`] sums.
const READ_VECTORS: u64 = 2048;

/// A copy of `bytes`, a multiple of 16, from `x` to `y`: the bandwidth baseline of other kernels.
pub fn copy(rungs: Rungs, bytes: u64) -> Result<Launch, LaunchError> {
    const WORKGROUP: u64 = 256;
    let overrides = vec![("WORKGROUP", WORKGROUP as f64)];
    baseline("copy", "copy.wgsl", overrides, rungs, bytes, (WORKGROUP, bytes / 16 * 16))
}

/// Sums of the words of `x`, which has `bytes`, a multiple of 16: one word of `y` for each 32 KiB. The bandwidth baseline of
/// kernels that mostly read.
pub fn read_sums(rungs: Rungs, bytes: u64) -> Result<Launch, LaunchError> {
    let sums = (bytes / 16).div_ceil(READ_VECTORS);
    baseline("read_sums", "read_sums.wgsl", Vec::new(), rungs, bytes, (READ_VECTORS, 4 * sums))
}

/// A launch over vectors of 16 bytes of `x`, with these vectors of a workgroup and bytes of `y`.
fn baseline(
    kernel: &str,
    file: &'static str,
    overrides: Vec<(&'static str, f64)>,
    rungs: Rungs,
    bytes: u64,
    (group_vectors, y_bytes): (u64, u64),
) -> Result<Launch, LaunchError> {
    let count = bytes / 16;
    // A folded grid may have some workgroups too many, whose first vector is within 32 bits too.
    if count > u64::from(u32::MAX >> 1) {
        return Err(LaunchError::Large { kernel: kernel.to_owned(), what: "vectors", count });
    }
    let params = ElementwiseParams { count: count as u32, ..Default::default() };
    let flag = |value: bool| u32::from(value).to_string();
    Ok(Launch {
        groups: grid(kernel, count.div_ceil(group_vectors))?,
        variant: Variant {
            name: kernel.to_owned(),
            file,
            constants: vec![("IMMEDIATES", flag(rungs.immediates)), ("SUBGROUPS", flag(false))],
            overrides,
        },
        slots: vec![
            Slot { name: "x", binding: 0, access: Access::Read, bytes: count * 16 },
            Slot { name: "y", binding: 1, access: Access::ReadWrite, bytes: y_bytes },
        ],
        uniforms: Vec::new(),
        rope: None,
        params: Some((2, bytemuck::bytes_of(&params).to_vec())),
    })
}
