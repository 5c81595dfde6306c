use std::fmt;

use gyrus_kernels::shader::Rungs;
use wgpu::{
    Backends, CooperativeMatrixProperties, CooperativeScalarType, Features, InstanceDescriptor, InstanceFlags,
};

/// The kind of an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdapterKind {
    /// A card with its own memory.
    Discrete,
    /// Part of the CPU, with which it shares memory.
    Integrated,
    /// A GPU of a virtual machine.
    Virtual,
    /// A software implementation: correct, and slow.
    Software,
    /// The driver does not say.
    Unknown,
}

impl fmt::Display for AdapterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AdapterKind::Discrete => "discrete",
            AdapterKind::Integrated => "integrated",
            AdapterKind::Virtual => "virtual",
            AdapterKind::Software => "software",
            AdapterKind::Unknown => "unknown kind",
        })
    }
}

/// A GPU, or software that acts as one, and its features.
#[derive(Debug, Clone)]
pub struct Adapter {
    pub(crate) inner: wgpu::Adapter,
    /// Its name.
    pub name: String,
    /// The API that wgpu uses for it.
    pub backend: String,
    /// Its kind.
    pub kind: AdapterKind,
    /// Its driver, with version.
    pub driver: String,
    /// The optional shader features it has.
    pub rungs: Rungs,
    /// Whether it has timestamp queries.
    pub timestamps: bool,
    /// Whether compiled pipelines can be stored.
    pub pipeline_cache: bool,
    /// The smallest and the largest number of invocations of a subgroup.
    pub subgroup_sizes: (u32, u32),
    /// Shapes of cooperative matrices, those that WGSL can express.
    pub cooperative: Vec<String>,
    /// Limits that kernels depend on: name and value.
    pub limits: Vec<(&'static str, u64)>,
}

impl Adapter {
    fn new(inner: wgpu::Adapter) -> Adapter {
        let info = inner.get_info();
        let features = inner.features();
        let limits = inner.limits();
        let matrices = inner.cooperative_matrix_properties();
        let cooperative = matrices
            .iter()
            .filter(|p| p.m_size == p.n_size && p.n_size == p.k_size && [8, 16].contains(&p.m_size))
            .map(|p| format!("{}x{}x{} {:?}->{:?}", p.m_size, p.n_size, p.k_size, p.ab_type, p.cr_type))
            .collect();
        let cooperates = features.contains(Features::EXPERIMENTAL_COOPERATIVE_MATRIX)
            && (info.subgroup_min_size, info.subgroup_max_size) == (32, 32)
            && matrices.iter().any(multiplies_f16);
        Adapter {
            name: info.name,
            backend: info.backend.to_string(),
            kind: match info.device_type {
                wgpu::DeviceType::DiscreteGpu => AdapterKind::Discrete,
                wgpu::DeviceType::IntegratedGpu => AdapterKind::Integrated,
                wgpu::DeviceType::VirtualGpu => AdapterKind::Virtual,
                wgpu::DeviceType::Cpu => AdapterKind::Software,
                wgpu::DeviceType::Other => AdapterKind::Unknown,
            },
            driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
            rungs: Rungs {
                f16: features.contains(Features::SHADER_F16),
                subgroups: features.contains(Features::SUBGROUP),
                immediates: features.contains(Features::IMMEDIATES) && limits.max_immediate_size >= 64,
                cooperative: cooperates,
                // wgpu lists only matrices that WGSL can express, so int8 cannot be queried. All GPUs of NVIDIA
                // that have f16 cooperative matrices have int8 ones.
                int8_matrix: cooperates
                    && info.backend == wgpu::Backend::Vulkan
                    && info.vendor == NVIDIA
                    && features.contains(Features::PASSTHROUGH_SHADERS),
            },
            timestamps: features.contains(Features::TIMESTAMP_QUERY),
            pipeline_cache: features.contains(Features::PIPELINE_CACHE),
            subgroup_sizes: (info.subgroup_min_size, info.subgroup_max_size),
            cooperative,
            limits: vec![
                ("buffer bytes", limits.max_buffer_size),
                ("binding bytes", limits.max_storage_buffer_binding_size),
                ("workgroup memory", limits.max_compute_workgroup_storage_size.into()),
                ("workgroup invocations", limits.max_compute_invocations_per_workgroup.into()),
                ("storage bindings", limits.max_storage_buffers_per_shader_stage.into()),
                ("immediate bytes", limits.max_immediate_size.into()),
            ],
            inner,
        }
    }

    /// The API's name in its usual spelling.
    pub fn api(&self) -> &str {
        match self.backend.as_str() {
            "vulkan" => "Vulkan",
            "metal" => "Metal",
            "dx12" => "DX12",
            other => other,
        }
    }

    /// The order of preference where no adapter is named.
    fn rank(&self) -> u8 {
        match self.kind {
            AdapterKind::Discrete => 0,
            AdapterKind::Virtual => 1,
            AdapterKind::Integrated => 2,
            AdapterKind::Unknown => 3,
            AdapterKind::Software => 4,
        }
    }
}

/// NVIDIA's PCI vendor id.
const NVIDIA: u32 = 0x10de;

/// Whether these are the matrices that kernels are written for: 16 × 16 in f16, with sums in f32.
fn multiplies_f16(p: &CooperativeMatrixProperties) -> bool {
    [p.m_size, p.n_size, p.k_size] == [16; 3]
        && p.ab_type == CooperativeScalarType::F16
        && p.cr_type == CooperativeScalarType::F32
}

/// Whether there may be a GPU in hardware. This is cheap, where [`adapters`] loads every driver with its shader compiler:
/// on Linux, a GPU has a device file.
pub fn may_have_gpu() -> bool {
    if !cfg!(target_os = "linux") {
        return true;
    }
    // DRM of any vendor; then NVIDIA, also on Tegra; DirectX under WSL; Arm, Qualcomm, Imagination.
    const NODES: [&str; 8] = ["dri", "nvidia", "nvhost", "nvgpu", "dxg", "mali", "kgsl", "pvr"];
    match std::fs::read_dir("/dev") {
        Ok(files) => files.flatten().any(|file| {
            let name = file.file_name();
            NODES.iter().any(|node| name.to_string_lossy().starts_with(node))
        }),
        Err(_) => true,
    }
}

/// All adapters, the best first. Without any driver the list is empty.
pub fn adapters() -> Vec<Adapter> {
    let mut descriptor = InstanceDescriptor::new_without_display_handle();
    descriptor.backends = Backends::VULKAN | Backends::METAL | Backends::DX12;
    // wgpu's validation of indirect dispatches is not needed: there are none. WGPU_VALIDATION enables the APIs'
    // validation layers.
    descriptor.flags = InstanceFlags::empty().with_env();
    let instance = wgpu::Instance::new(descriptor);
    let mut all: Vec<Adapter> = pollster::block_on(instance.enumerate_adapters(Backends::all()))
        .into_iter()
        .map(Adapter::new)
        .collect();
    all.sort_by_key(Adapter::rank);
    all
}
