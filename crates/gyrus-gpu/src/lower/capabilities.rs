use gyrus_kernels::call::{
    AttendCall, COOPERATIVE_MEMORY, FlashCall, FlashTuning, INT8_MATRIX_INVOCATIONS, MatVecCall, Results,
    SelectTuning,
};
use gyrus_kernels::shader::Rungs;

/// What a device offers to kernels: all that the choice of kernels depends on beside the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Optional features of shaders.
    pub rungs: Rungs,
    /// Bytes of memory that a workgroup shares.
    pub workgroup_memory: u64,
    /// The most invocations of a workgroup.
    pub most_invocations: u32,
    /// The most storage buffers that a kernel binds.
    pub storage_buffers: usize,
    /// The most bytes of one buffer. Larger matrices are divided by rows.
    pub largest_buffer: u64,
}

impl Capabilities {
    /// The least that WebGPU promises: no optional feature, 16 KiB of workgroup memory.
    pub const PLAIN: Capabilities = Capabilities {
        rungs: Rungs::NONE,
        workgroup_memory: 16 << 10,
        most_invocations: 256,
        storage_buffers: 8,
        largest_buffer: 128 << 20,
    };

    /// An H200 with NVIDIA's Vulkan driver: every optional feature, 48 KiB of workgroup memory.
    pub const H200: Capabilities = Capabilities {
        rungs: Rungs::ALL,
        workgroup_memory: 48 << 10,
        most_invocations: 1024,
        storage_buffers: 1 << 20,
        largest_buffer: u32::MAX as u64,
    };

    /// Whether a kernel can have this many invocations a workgroup, workgroup memory and storage buffers.
    fn allows(&self, invocations: u32, workgroup_bytes: u64, storage_buffers: usize) -> bool {
        invocations <= self.most_invocations
            && workgroup_bytes <= self.workgroup_memory
            && storage_buffers <= self.storage_buffers
    }

    /// Whether attention can run over splits of the KV cache in the mode of this call.
    pub fn can_attend_split(&self, call: &AttendCall) -> bool {
        call.check().is_ok()
            && self.allows(call.invocations(), call.workgroup_bytes(), call.storage_buffers())
    }

    /// Whether tiles of rows can attend together, as prefill does.
    pub fn can_flash(&self, call: &FlashCall) -> bool {
        call.check(self.flash_tuning()).is_ok()
    }

    /// Flash attention in tiles that fit the workgroup memory, of which Metal has 32 KiB.
    pub(crate) fn flash_tuning(&self) -> FlashTuning {
        let memory = u32::try_from(self.workgroup_memory).unwrap_or(u32::MAX);
        let Rungs { cooperative, f16, subgroups, .. } = self.rungs;
        let cooperative = cooperative && f16 && subgroups && memory >= COOPERATIVE_MEMORY;
        FlashTuning { memory: Some(memory.min(32 << 10)), cooperative, ..FlashTuning::default() }
    }

    /// Whether int8 cooperative matrices can multiply, with this epilogue.
    pub fn can_use_int8_matrix(&self, call: &MatVecCall, results: Results) -> bool {
        call.check_int8_matrix(self.rungs, results).is_ok()
            && self.allows(
                INT8_MATRIX_INVOCATIONS,
                call.int8_matrix_workgroup_bytes(),
                call.int8_matrix_storage_buffers(results),
            )
    }

    /// Whether a mat-vec of one row has the workgroup memory to quantise its input in its prologue.
    pub fn can_fuse_input(&self, call: &MatVecCall) -> bool {
        call.workgroup_bytes() <= self.workgroup_memory
    }

    /// How tokens are drawn: by 512 invocations a row where the device has them, and the workgroup memory for them. On an
    /// H200 they are faster than 256 and 1,024.
    pub(crate) fn select_tuning(&self) -> SelectTuning {
        let fits = self.most_invocations >= 512 && self.workgroup_memory >= 17 << 10;
        SelectTuning { workgroup: fits.then_some(512), refine: None }
    }

    /// Whether the position of a single row can be an immediate. Steps in flight share a uniform buffer, so it cannot
    /// be there.
    pub fn has_position_immediate(&self) -> bool {
        self.rungs.immediates
    }
}
