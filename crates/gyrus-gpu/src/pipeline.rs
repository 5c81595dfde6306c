use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use gyrus_kernels::shader::{Source, Variant};
use gyrus_kernels::{Access, Launch};
use wgpu::{
    BindGroupLayoutDescriptor, BindGroupLayoutEntry, BindingType, BufferBindingType,
    ComputePipelineDescriptor, ErrorFilter, PassthroughShaderEntryPoint, PipelineCompilationOptions,
    PipelineLayoutDescriptor, ShaderModuleDescriptor, ShaderModuleDescriptorPassthrough, ShaderRuntimeChecks,
    ShaderSource, ShaderStages,
};

use crate::device::{Gpu, lock};
use crate::dispatch::Dispatch;
use crate::error::GpuError;
use crate::spirv::{early_loads, int8_matrix};
use crate::vulkan_recorder::Compiled;

/// A variant of a kernel. It is compiled for whoever first records it: drivers take long, and few kernels are recorded by
/// wgpu and by the Vulkan recorder.
#[derive(Debug)]
pub(crate) struct Pipeline {
    recipe: Recipe,
    /// For wgpu, once it was needed.
    for_wgpu: OnceLock<WgpuPipeline>,
    /// For the Vulkan recorder, once it was needed.
    compiled: OnceLock<Arc<Compiled>>,
}

/// A pipeline of wgpu.
#[derive(Debug)]
pub(crate) struct WgpuPipeline {
    pub(crate) inner: wgpu::ComputePipeline,
    pub(crate) layout: wgpu::BindGroupLayout,
}

/// What a pipeline is compiled from.
#[derive(Debug)]
pub(crate) struct Recipe {
    pub(crate) variant: Variant,
    pub(crate) source: Source,
    /// Rewritten SPIR-V, which bypasses wgpu's shader translation.
    pub(crate) spirv: Option<Vec<u32>>,
    pub(crate) entries: Vec<BindGroupLayoutEntry>,
    pub(crate) immediate_size: u32,
}

/// Translates a kernel to SPIR-V and rewrites that: its WGSL, its entry point, its override constants and its bindings.
type Rewrite = fn(&str, &str, &[(&str, f64)], &[u32]) -> Result<Vec<u32>, String>;

impl Recipe {
    pub(crate) fn refused(&self, reason: &str) -> GpuError {
        GpuError::Shader { kernel: self.variant.key(), reason: one_line(reason) }
    }
}

impl Pipeline {
    /// It for wgpu, compiled on first use.
    pub(crate) fn for_wgpu(&self, gpu: &Gpu) -> Result<&WgpuPipeline, GpuError> {
        if let Some(pipeline) = self.for_wgpu.get() {
            return Ok(pipeline);
        }
        // If two threads compile the same kernel, one result is dropped.
        let pipeline = gpu.wgpu_pipeline(&self.recipe)?;
        Ok(self.for_wgpu.get_or_init(|| pipeline))
    }

    /// It for the Vulkan recorder, compiled on first use.
    pub(crate) fn compiled(&self, gpu: &Gpu) -> Result<Arc<Compiled>, GpuError> {
        if let Some(compiled) = self.compiled.get() {
            return Ok(Arc::clone(compiled));
        }
        let compiled = Arc::new(Compiled::new(gpu, &self.recipe)?);
        Ok(Arc::clone(self.compiled.get_or_init(|| compiled)))
    }
}

impl Gpu {
    /// Compiles the kernels of these launches that are not compiled yet for wgpu, on all CPU threads, and writes the
    /// pipeline cache.
    pub fn compile(&self, launches: &[Launch]) -> Result<(), GpuError> {
        let compiled = self.compile_launches(launches, false);
        self.store_pipelines();
        compiled
    }

    /// Compiles the kernels of these launches that are not compiled yet for wgpu or the Vulkan recorder, on all CPU
    /// threads, in their order.
    pub(crate) fn compile_launches(&self, launches: &[Launch], vulkan: bool) -> Result<(), GpuError> {
        let mut keys = HashSet::new();
        let unique: Vec<&Launch> =
            launches.iter().filter(|launch| keys.insert(launch.variant().key())).collect();
        in_parallel(&unique, |launch| self.compile_launch(launch, vulkan))
    }

    /// How many kernels were compiled for wgpu, and how many for the Vulkan recorder.
    pub fn compiled_kernels(&self) -> (usize, usize) {
        let pipelines = lock(&self.pipelines);
        let count = |is_compiled: fn(&Pipeline) -> bool| {
            pipelines.values().filter(|pipeline| is_compiled(pipeline)).count()
        };
        (
            count(|pipeline| pipeline.for_wgpu.get().is_some()),
            count(|pipeline| pipeline.compiled.get().is_some()),
        )
    }

    /// Compiles the kernel of a launch for wgpu or the Vulkan recorder, unless it is compiled.
    pub(crate) fn compile_launch(&self, launch: &Launch, vulkan: bool) -> Result<(), GpuError> {
        let pipeline = self.pipeline(launch)?;
        if vulkan { pipeline.compiled(self).map(drop) } else { pipeline.for_wgpu(self).map(drop) }
    }

    /// Whether the kernel of a launch is compiled for wgpu or the Vulkan recorder.
    pub(crate) fn is_compiled(&self, launch: &Launch, vulkan: bool) -> bool {
        let pipelines = lock(&self.pipelines);
        let pipeline = pipelines.get(&launch.variant().key());
        pipeline.is_some_and(|pipeline| match vulkan {
            true => pipeline.compiled.get().is_some(),
            false => pipeline.for_wgpu.get().is_some(),
        })
    }

    /// Compiles pipelines for the Vulkan recorder that are not compiled yet, on all CPU threads.
    pub(crate) fn compile_for_vulkan(&self, pipelines: &[Arc<Pipeline>]) -> Result<(), GpuError> {
        let missing = missing(pipelines.iter(), |pipeline| pipeline.compiled.get().is_none());
        in_parallel(&missing, |pipeline| pipeline.compiled(self).map(drop))
    }

    /// Compiles the kernels of dispatches for wgpu that are not compiled yet, on all CPU threads.
    pub(crate) fn compile_for_wgpu<'d>(
        &self,
        dispatches: impl Iterator<Item = &'d Dispatch>,
    ) -> Result<(), GpuError> {
        let pipelines = dispatches.map(|dispatch| &dispatch.pipeline);
        let missing = missing(pipelines, |pipeline| pipeline.for_wgpu.get().is_none());
        in_parallel(&missing, |pipeline| pipeline.for_wgpu(self).map(drop))
    }

    /// Writes the pipeline cache if it has grown.
    pub(crate) fn store_pipelines(&self) {
        self.pipeline_cache.as_ref().inspect(|cache| cache.store());
    }

    /// The pipeline of a launch. It may not be compiled yet.
    pub(crate) fn pipeline(&self, launch: &Launch) -> Result<Arc<Pipeline>, GpuError> {
        let key = launch.variant().key();
        if let Some(pipeline) = lock(&self.pipelines).get(&key) {
            return Ok(Arc::clone(pipeline));
        }
        // Translated outside the lock. If two threads translate the same kernel, one result is dropped.
        let recipe = self.recipe(launch)?;
        let pipeline = Arc::new(Pipeline { recipe, for_wgpu: OnceLock::new(), compiled: OnceLock::new() });
        Ok(Arc::clone(lock(&self.pipelines).entry(key).or_insert(pipeline)))
    }

    fn recipe(&self, launch: &Launch) -> Result<Recipe, GpuError> {
        let variant = launch.variant();
        let source =
            variant.source().map_err(|error| GpuError::Source { kernel: variant.name.clone(), error })?;
        let entries = self.layout_entries(launch);
        let takes_spirv = self.device.features().contains(wgpu::Features::PASSTHROUGH_SHADERS);
        let rewrite: Option<Rewrite> = if variant.has_int8_matrix() {
            Some(int8_matrix)
        } else {
            (variant.loads_early() && takes_spirv).then_some(early_loads)
        };
        let bindings: Vec<u32> = entries.iter().map(|entry| entry.binding).collect();
        let spirv = rewrite
            .map(|rewrite| rewrite(&source.text, &variant.name, &variant.overrides, &bindings))
            .transpose()
            .map_err(|reason| GpuError::Shader { kernel: variant.key(), reason: one_line(&reason) })?;
        let immediate_size = match launch.params() {
            Some((_, params)) if self.rungs().immediates => params.len() as u32,
            _ => 0,
        };
        Ok(Recipe { variant: variant.clone(), source, spirv, entries, immediate_size })
    }

    fn wgpu_pipeline(&self, recipe: &Recipe) -> Result<WgpuPipeline, GpuError> {
        let Recipe { variant, source, spirv, entries, immediate_size } = recipe;
        let scope = self.device.push_error_scope(ErrorFilter::Validation);
        let module = match spirv {
            Some(words) => self.rewritten_module(&variant.name, words),
            None => self.module(&variant.name, &source.text),
        };
        let layout = self
            .device
            .create_bind_group_layout(&BindGroupLayoutDescriptor { label: Some(&variant.name), entries });
        let pipeline_layout = self.device.create_pipeline_layout(&PipelineLayoutDescriptor {
            label: Some(&variant.name),
            bind_group_layouts: &[Some(&layout)],
            immediate_size: *immediate_size,
        });
        let inner = self.device.create_compute_pipeline(&ComputePipelineDescriptor {
            label: Some(&variant.name),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some(&variant.name),
            compilation_options: PipelineCompilationOptions {
                // Rewritten SPIR-V has its constants filled in.
                constants: if spirv.is_some() { &[] } else { &variant.overrides },
                // Kernels write workgroup memory before they read it.
                zero_initialize_workgroup_memory: false,
            },
            cache: self.pipeline_cache.as_ref().map(|cache| &cache.cache),
        });
        if let Some(error) = pollster::block_on(scope.pop()) {
            let info = pollster::block_on(module.get_compilation_info());
            let lines: Vec<String> = info.messages.iter().map(|message| located(message, source)).collect();
            let reason = if lines.is_empty() { one_line(&error.to_string()) } else { lines.join("; ") };
            return Err(GpuError::Shader { kernel: variant.key(), reason });
        }
        self.take_error()?;
        self.pipeline_cache.as_ref().inspect(|cache| cache.grew());
        Ok(WgpuPipeline { inner, layout })
    }

    /// The checks that are compiled into shaders.
    pub(crate) fn runtime_checks(&self) -> ShaderRuntimeChecks {
        if self.checked { ShaderRuntimeChecks::checked() } else { ShaderRuntimeChecks::unchecked() }
    }

    /// A shader module from WGSL.
    fn module(&self, name: &str, text: &str) -> wgpu::ShaderModule {
        let descriptor =
            ShaderModuleDescriptor { label: Some(name), source: ShaderSource::Wgsl(text.into()) };
        // SAFETY: without checks, a shader must stay within its buffers and its loops must end. Loops run over counts
        // from parameters, and `Launch::check_buffers` has checked that every buffer is large enough for the indices
        // computed from those parameters. Whoever writes a block table checks its entries.
        #[allow(unsafe_code)]
        unsafe {
            self.device.create_shader_module_trusted(descriptor, self.runtime_checks())
        }
    }

    /// A shader module from rewritten SPIR-V, which wgpu passes to the driver as it is. It has no runtime checks.
    fn rewritten_module(&self, name: &str, words: &[u32]) -> wgpu::ShaderModule {
        // The workgroup size is for APIs whose shaders do not contain it.
        let entry = PassthroughShaderEntryPoint { name: name.into(), workgroup_size: (0, 0, 0) };
        let descriptor = ShaderModuleDescriptorPassthrough {
            label: Some(name),
            entry_points: vec![entry].into(),
            spirv: Some(words.into()),
            ..Default::default()
        };
        // SAFETY: the SPIR-V was generated from a WGSL shader that naga has validated; matrix types and instructions
        // were replaced by others of the same form, or buffers are no longer declared as read-only. Its bindings have the
        // numbers that wgpu gives those of the layout. The conditions for a shader without checks hold as in
        // `Gpu::module`. Devices without int8 cooperative matrices do not have this rung.
        #[allow(unsafe_code)]
        unsafe {
            self.device.create_shader_module_passthrough(descriptor)
        }
    }

    fn layout_entries(&self, launch: &Launch) -> Vec<BindGroupLayoutEntry> {
        let entry = |binding, ty| BindGroupLayoutEntry {
            binding,
            visibility: ShaderStages::COMPUTE,
            ty: BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
            count: None,
        };
        let mut entries: Vec<BindGroupLayoutEntry> = Vec::new();
        for slot in launch.slots() {
            let read_only = slot.access == Access::Read;
            entries.push(entry(slot.binding, BufferBindingType::Storage { read_only }));
        }
        for (binding, _) in launch.uniforms() {
            entries.push(entry(*binding, BufferBindingType::Uniform));
        }
        if let (Some((binding, _)), false) = (launch.params(), self.rungs().immediates) {
            entries.push(entry(*binding, BufferBindingType::Uniform));
        }
        // wgpu's Vulkan backend numbers them in this order.
        entries.sort_unstable_by_key(|entry| entry.binding);
        entries
    }
}

/// The pipelines that are missing something, each once. If there are none, nothing is allocated.
fn missing<'p>(
    pipelines: impl Iterator<Item = &'p Arc<Pipeline>>,
    is_missing: impl Fn(&Pipeline) -> bool,
) -> Vec<&'p Arc<Pipeline>> {
    let mut missing: Vec<&Arc<Pipeline>> = Vec::new();
    for pipeline in pipelines.filter(|pipeline| is_missing(pipeline)) {
        if !missing.iter().any(|other| Arc::ptr_eq(other, pipeline)) {
            missing.push(pipeline);
        }
    }
    missing
}

/// Processes all items on all CPU threads.
fn in_parallel<T: Sync>(all: &[T], work: impl Fn(&T) -> Result<(), GpuError> + Sync) -> Result<(), GpuError> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(all.len());
    let next = AtomicUsize::new(0);
    let run = || {
        while let Some(item) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            work(item)?;
        }
        Ok(())
    };
    let results: Vec<Result<(), GpuError>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        let panicked = |_| Err(GpuError::internal("the shader compiler panicked"));
        workers.into_iter().map(|worker| worker.join().unwrap_or_else(panicked)).collect()
    });
    results.into_iter().collect()
}

/// A compiler's message with the line of the WGSL file before preprocessing.
fn located(message: &wgpu::CompilationMessage, source: &Source) -> String {
    match message.location.and_then(|at| source.origin(at.line_number)) {
        // The other lines quote the preprocessed text.
        Some((file, line)) => format!("{file}:{line}: {}", first_line(&message.message)),
        None => one_line(&message.message),
    }
}

fn first_line(text: &str) -> &str {
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
