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
use crate::error::GpuError;
use crate::spirv::int8_matrix;
use crate::vulkan_recorder::Compiled;

/// A compiled variant of a kernel.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub(crate) inner: wgpu::ComputePipeline,
    pub(crate) layout: wgpu::BindGroupLayout,
    recipe: Recipe,
    /// The same for the Vulkan recorder, once it was needed.
    compiled: OnceLock<Arc<Compiled>>,
}

/// What a pipeline is compiled from.
#[derive(Debug)]
pub(crate) struct Recipe {
    pub(crate) variant: Variant,
    pub(crate) text: String,
    /// Rewritten SPIR-V, which bypasses wgpu's shader translation.
    pub(crate) spirv: Option<Vec<u32>>,
    pub(crate) entries: Vec<BindGroupLayoutEntry>,
    pub(crate) immediate_size: u32,
}

impl Recipe {
    pub(crate) fn refused(&self, reason: &str) -> GpuError {
        GpuError::Shader { kernel: self.variant.key(), reason: one_line(reason) }
    }
}

impl Pipeline {
    /// The same for the Vulkan recorder.
    pub(crate) fn compiled(&self, gpu: &Gpu) -> Result<Arc<Compiled>, GpuError> {
        if let Some(compiled) = self.compiled.get() {
            return Ok(Arc::clone(compiled));
        }
        let compiled = Arc::new(Compiled::new(gpu, &self.recipe)?);
        Ok(Arc::clone(self.compiled.get_or_init(|| compiled)))
    }
}

impl Gpu {
    /// Compiles the kernels of these launches that are not compiled yet, on all CPU threads.
    pub fn compile(&self, launches: &[Launch]) -> Result<(), GpuError> {
        let mut missing: Vec<&Launch> = Vec::new();
        for launch in launches {
            let key = launch.variant().key();
            if !lock(&self.pipelines).contains_key(&key) && !missing.iter().any(|m| m.variant().key() == key)
            {
                missing.push(launch);
            }
        }
        let compiled = in_parallel(&missing, |launch| self.pipeline(launch).map(drop));
        self.pipeline_cache.as_ref().inspect(|cache| cache.store());
        compiled
    }

    /// Compiles pipelines for the Vulkan recorder that are not compiled yet, on all CPU threads.
    pub(crate) fn compile_for_vulkan(&self, pipelines: &[Arc<Pipeline>]) -> Result<(), GpuError> {
        let mut missing: Vec<&Arc<Pipeline>> = Vec::new();
        for pipeline in pipelines.iter().filter(|pipeline| pipeline.compiled.get().is_none()) {
            if !missing.iter().any(|other| Arc::ptr_eq(other, pipeline)) {
                missing.push(pipeline);
            }
        }
        in_parallel(&missing, |pipeline| pipeline.compiled(self).map(drop))
    }

    /// The pipeline of a launch, compiled on first use.
    pub(crate) fn pipeline(&self, launch: &Launch) -> Result<Arc<Pipeline>, GpuError> {
        let key = launch.variant().key();
        if let Some(pipeline) = lock(&self.pipelines).get(&key) {
            return Ok(Arc::clone(pipeline));
        }
        // Compiled outside the lock. If two threads compile the same kernel, one result is dropped.
        let pipeline = Arc::new(self.build(launch)?);
        Ok(Arc::clone(lock(&self.pipelines).entry(key).or_insert(pipeline)))
    }

    fn build(&self, launch: &Launch) -> Result<Pipeline, GpuError> {
        let variant = launch.variant();
        let source =
            variant.source().map_err(|error| GpuError::Source { kernel: variant.name.clone(), error })?;
        let entries = self.layout_entries(launch);
        let spirv = if variant.has_int8_matrix() {
            let bindings: Vec<u32> = entries.iter().map(|entry| entry.binding).collect();
            let words = int8_matrix(&source.text, &variant.name, &variant.overrides, &bindings)
                .map_err(|reason| GpuError::Shader { kernel: variant.key(), reason: one_line(&reason) })?;
            Some(words)
        } else {
            None
        };
        let scope = self.device.push_error_scope(ErrorFilter::Validation);
        let module = match &spirv {
            Some(words) => self.rewritten_module(&variant.name, words),
            None => self.module(&variant.name, &source.text),
        };
        let layout = self.device.create_bind_group_layout(&BindGroupLayoutDescriptor {
            label: Some(&variant.name),
            entries: &entries,
        });
        let immediate_size = match launch.params() {
            Some((_, params)) if self.rungs().immediates => params.len() as u32,
            _ => 0,
        };
        let pipeline_layout = self.device.create_pipeline_layout(&PipelineLayoutDescriptor {
            label: Some(&variant.name),
            bind_group_layouts: &[Some(&layout)],
            immediate_size,
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
            let lines: Vec<String> = info.messages.iter().map(|message| located(message, &source)).collect();
            let reason = if lines.is_empty() { one_line(&error.to_string()) } else { lines.join("; ") };
            return Err(GpuError::Shader { kernel: variant.key(), reason });
        }
        self.take_error()?;
        self.pipeline_cache.as_ref().inspect(|cache| cache.grew());
        let recipe = Recipe { variant: variant.clone(), text: source.text, spirv, entries, immediate_size };
        Ok(Pipeline { inner, layout, recipe, compiled: OnceLock::new() })
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
        // were replaced by others of the same form. Its bindings have the numbers that wgpu gives those of the layout.
        // The conditions for a shader without checks hold as in `Gpu::module`. Devices without int8 cooperative
        // matrices do not have this rung.
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

/// Processes all items on all CPU threads.
fn in_parallel<T: Sync>(all: &[T], work: impl Fn(&T) -> Result<(), GpuError> + Sync) -> Result<(), GpuError> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(all.len());
    let results: Vec<Result<(), GpuError>> = std::thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> = (0..threads)
            .map(|worker| {
                scope.spawn(move || all.iter().skip(worker).step_by(threads).map(work).collect::<Vec<_>>())
            })
            .collect();
        let panicked = |_| vec![Err(GpuError::internal("the shader compiler panicked"))];
        workers.into_iter().flat_map(|worker| worker.join().unwrap_or_else(panicked)).collect()
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
