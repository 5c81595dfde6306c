use std::borrow::Cow;
use std::sync::Arc;

use ash::vk;
use gyrus_kernels::Access;
use wgpu::hal::{self, CommandEncoder as _, Device as _};

use super::{Vulkan, gone, handle, refused};
use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::error::GpuError;
use crate::pipeline::Recipe;
use crate::spirv::parsed;

/// A pipeline for the Vulkan recorder, from the same shader and with the same bindings as wgpu's.
pub(crate) struct Compiled {
    /// The device that created the rest. Those are taken out only to be destroyed.
    device: wgpu::Device,
    group: Option<hal::vulkan::BindGroupLayout>,
    layout: Option<hal::vulkan::PipelineLayout>,
    pipeline: Option<hal::vulkan::ComputePipeline>,
}

impl Compiled {
    pub(crate) fn new(gpu: &Gpu, recipe: &Recipe) -> Result<Compiled, GpuError> {
        let mut made = Compiled { device: gpu.device.clone(), group: None, layout: None, pipeline: None };
        // SAFETY: everything is created by one device from a shader that naga has validated. Its bindings are those of the
        // launch, which wgpu compares with the shader wherever it runs the same kernel, as all tests of kernels do. Kernels
        // are chosen to fit the device's limits. `Compiled::drop` destroys what was created, also if a later step fails;
        // the module is not needed after the pipeline is created. `Gpu::module` says why shaders need no checks.
        unsafe {
            let Some(device) = gpu.device.as_hal::<Vulkan>() else { return Err(gone()) };
            let group = device.create_bind_group_layout(&hal::BindGroupLayoutDescriptor {
                label: None,
                flags: hal::BindGroupLayoutFlags::empty(),
                entries: &recipe.entries,
            });
            let group = made.group.insert(group.map_err(|error| refused(gpu, &error))?);
            let layout = device.create_pipeline_layout(&hal::PipelineLayoutDescriptor {
                label: None,
                flags: hal::PipelineLayoutFlags::empty(),
                bind_group_layouts: &[Some(&*group)],
                immediate_size: recipe.immediate_size,
            });
            let layout = made.layout.insert(layout.map_err(|error| refused(gpu, &error))?);
            let input = match &recipe.spirv {
                Some(words) => hal::ShaderInput::SpirV(words),
                None => {
                    let (module, info) =
                        parsed(&recipe.source.text).map_err(|reason| recipe.refused(&reason))?;
                    let module = Cow::Owned(module);
                    hal::ShaderInput::Naga(hal::NagaShader { module, info, debug_source: None })
                }
            };
            let descriptor =
                hal::ShaderModuleDescriptor { label: None, runtime_checks: gpu.runtime_checks() };
            let module = device
                .create_shader_module(&descriptor, input)
                .map_err(|error| recipe.refused(&error.to_string()))?;
            // Rewritten SPIR-V has its constants filled in.
            let overrides = if recipe.spirv.is_some() { &[][..] } else { &recipe.variant.overrides };
            let pipeline = device.create_compute_pipeline(&hal::ComputePipelineDescriptor {
                label: None,
                layout: &*layout,
                stage: hal::ProgrammableStage {
                    module: &module,
                    entry_point: &recipe.variant.name,
                    constants: &overrides.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
                    zero_initialize_workgroup_memory: false,
                },
                // Drivers keep a cache of their own on disk. NVIDIA's does not use it for a pipeline that has another
                // one, and creates such pipelines one after another: 10 to 35 ms each instead of 1 when warm.
                cache: None,
            });
            device.destroy_shader_module(module);
            made.pipeline = Some(pipeline.map_err(|error| recipe.refused(&error.to_string()))?);
        }
        Ok(made)
    }
}

impl Drop for Compiled {
    fn drop(&mut self) {
        // SAFETY: each was created by this device and is destroyed once. Commands that use them have completed: a backend
        // waits for them before it drops its pipelines.
        unsafe {
            let Some(device) = self.device.as_hal::<Vulkan>() else { return };
            self.pipeline.take().into_iter().for_each(|pipeline| device.destroy_compute_pipeline(pipeline));
            self.layout.take().into_iter().for_each(|layout| device.destroy_pipeline_layout(layout));
            self.group.take().into_iter().for_each(|group| device.destroy_bind_group_layout(group));
        }
    }
}

/// A kernel and the buffers it is bound to.
pub(crate) struct Bound {
    compiled: Arc<Compiled>,
    /// Taken out only to be destroyed.
    group: Option<hal::vulkan::BindGroup>,
    read: Vec<vk::Buffer>,
    written: Vec<vk::Buffer>,
}

impl Bound {
    /// Binds buffers to a kernel's bindings. Those that it writes were created by [`Gpu::buffer`].
    pub(crate) fn new(
        gpu: &Gpu,
        compiled: Arc<Compiled>,
        buffers: &[(u32, Buffer, Access)],
    ) -> Result<Bound, GpuError> {
        let (mut read, mut written) = (Vec::new(), Vec::new());
        let mut handles = Vec::new();
        for (_, buffer, access) in buffers {
            let raw = handle(buffer)?;
            if *access == Access::Read {
                read.push(raw)
            } else {
                written.push(raw)
            }
            // SAFETY: it refers to the buffer while that is bound; dropping it destroys nothing.
            handles.push(unsafe { hal::vulkan::Buffer::from_raw(raw) });
        }
        let bindings: Vec<_> =
            handles.iter().map(|buffer| hal::BufferBinding::new_unchecked(buffer, 0, None)).collect();
        let mut entries: Vec<_> = (buffers.iter().zip(0..))
            .map(|((binding, _, _), index)| hal::BindGroupEntry {
                binding: *binding,
                resource_index: index,
                count: 1,
            })
            .collect();
        // wgpu's Vulkan backend numbers them in this order.
        entries.sort_unstable_by_key(|entry| entry.binding);
        let Some(layout) = &compiled.group else { return Err(gone()) };
        // SAFETY: the buffers belong to this device and live as long as the dispatch that owns this; the bindings are
        // those of the layout.
        let group = unsafe {
            let Some(device) = gpu.device.as_hal::<Vulkan>() else { return Err(gone()) };
            device.create_bind_group(&hal::BindGroupDescriptor {
                label: None,
                layout,
                buffers: &bindings,
                samplers: &[],
                textures: &[],
                entries: &entries,
                acceleration_structures: &[],
                external_textures: &[],
            })
        };
        let group = Some(group.map_err(|error| refused(gpu, &error))?);
        Ok(Bound { compiled, group, read, written })
    }

    /// Buffers that are only read.
    pub(super) fn read(&self) -> &[vk::Buffer] {
        &self.read
    }

    /// Buffers that are written, or read and written.
    pub(super) fn written(&self) -> &[vk::Buffer] {
        &self.written
    }

    /// Records a dispatch of the kernel over a grid.
    pub(super) fn record(
        &self,
        encoder: &mut hal::vulkan::CommandEncoder,
        immediates: &[u32],
        groups: [u32; 3],
    ) {
        let Compiled { layout: Some(layout), pipeline: Some(pipeline), .. } = &*self.compiled else { return };
        let Some(group) = &self.group else { return };
        // SAFETY: the encoder is recording; the pipeline, its layout and the bind group belong to one device, and there
        // are as many immediates as the layout has. `Launch` has checked the grid.
        unsafe {
            encoder.begin_compute_pass(&hal::ComputePassDescriptor { label: None, timestamp_writes: None });
            encoder.set_compute_pipeline(pipeline);
            encoder.set_bind_group(layout, 0, group, &[]);
            if !immediates.is_empty() {
                encoder.set_immediates(layout, 0, immediates);
            }
            encoder.dispatch_workgroups(groups);
            encoder.end_compute_pass();
        }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // SAFETY: it was created by this device and is destroyed once, after the commands that use it.
        unsafe {
            if let (Some(device), Some(group)) = (self.compiled.device.as_hal::<Vulkan>(), self.group.take())
            {
                device.destroy_bind_group(group);
            }
        }
    }
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Compiled({:?})", self.pipeline)
    }
}

impl std::fmt::Debug for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bound({:?})", self.group)
    }
}
