use crate::launch::{Access, Launch, LaunchError, Slot, grid};
use crate::params::ElementwiseParams;
use crate::shader::{Rungs, Variant};

/// A copy of `bytes`, a multiple of 16, from one buffer to another: the bandwidth baseline of other kernels.
pub fn copy(rungs: Rungs, bytes: u64) -> Result<Launch, LaunchError> {
    const WORKGROUP: u64 = 256;
    let count = bytes / 16;
    let kernel = "copy".to_owned();
    if count > u64::from(u32::MAX) {
        return Err(LaunchError::Large { kernel, what: "vectors", count });
    }
    let params = ElementwiseParams { count: count as u32, ..Default::default() };
    let flag = |value: bool| u32::from(value).to_string();
    Ok(Launch {
        groups: grid(&kernel, count.div_ceil(WORKGROUP))?,
        variant: Variant {
            name: kernel,
            file: "copy.wgsl",
            constants: vec![("IMMEDIATES", flag(rungs.immediates)), ("SUBGROUPS", flag(false))],
            overrides: vec![("WORKGROUP", WORKGROUP as f64)],
        },
        slots: vec![
            Slot { name: "x", binding: 0, access: Access::Read, bytes: count * 16 },
            Slot { name: "y", binding: 1, access: Access::ReadWrite, bytes: count * 16 },
        ],
        uniforms: Vec::new(),
        rope: None,
        params: Some((2, bytemuck::bytes_of(&params).to_vec())),
    })
}
