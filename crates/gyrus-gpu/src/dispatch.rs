use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use gyrus_kernels::call::copy;
use gyrus_kernels::grid::median;
use gyrus_kernels::{Access, Launch};
use wgpu::{
    BindGroupDescriptor, BindGroupEntry, BufferUsages, CommandEncoder, ComputePass, ComputePassDescriptor,
    ComputePassTimestampWrites, ErrorFilter, QuerySetDescriptor, QueryType,
};

use crate::adapter::AdapterKind;
use crate::buffer::Buffer;
use crate::device::{Gpu, wgpu_error};
use crate::error::GpuError;
use crate::pipeline::{Pipeline, WgpuPipeline};
use crate::vulkan_recorder::Bound;

/// A kernel bound to its buffers, which can be run any number of times.
#[derive(Debug)]
pub struct Dispatch {
    pub(crate) pipeline: Arc<Pipeline>,
    buffers: Vec<(u32, Buffer, Access)>,
    /// The buffers as wgpu binds them, once it has recorded this dispatch.
    group: OnceLock<wgpu::BindGroup>,
    /// The same for the Vulkan recorder.
    bound: OnceLock<Bound>,
    params: Params,
    /// The grid. It may change: kernels read their bounds from parameters and buffers.
    pub(crate) groups: [u32; 3],
}

/// How a kernel gets its parameters.
#[derive(Debug)]
enum Params {
    None,
    Immediate(Vec<u32>),
    Uniform(Buffer),
}

/// A kernel as wgpu records it.
#[derive(Debug)]
pub(crate) struct Recorded {
    pipeline: wgpu::ComputePipeline,
    group: wgpu::BindGroup,
    immediates: Vec<u32>,
    groups: [u32; 3],
}

impl Recorded {
    pub(crate) fn record(&self, pass: &mut ComputePass<'_>) {
        set(pass, &self.pipeline, &self.group, &self.immediates, self.groups);
    }
}

fn set(
    pass: &mut ComputePass<'_>,
    pipeline: &wgpu::ComputePipeline,
    group: &wgpu::BindGroup,
    immediates: &[u32],
    [x, y, z]: [u32; 3],
) {
    pass.set_pipeline(pipeline);
    pass.set_bind_group(0, group, &[]);
    if !immediates.is_empty() {
        pass.set_immediates(0, bytemuck::cast_slice(immediates));
    }
    pass.dispatch_workgroups(x, y, z);
}

impl Dispatch {
    /// Records it with wgpu.
    pub(crate) fn record(&self, gpu: &Gpu, pass: &mut ComputePass<'_>) -> Result<(), GpuError> {
        self.with_wgpu(gpu, |pipeline, group| {
            set(pass, pipeline, group, self.immediates(), self.groups);
        })
    }

    /// What wgpu records of it, to be recorded later: commands of wgpu cannot be kept between calls on all platforms.
    pub(crate) fn recorded(&self, gpu: &Gpu) -> Result<Recorded, GpuError> {
        self.with_wgpu(gpu, |pipeline, group| Recorded {
            pipeline: pipeline.clone(),
            group: group.clone(),
            immediates: self.immediates().to_vec(),
            groups: self.groups,
        })
    }

    /// Calls `work` with its pipeline and bind group of wgpu.
    fn with_wgpu<T>(
        &self,
        gpu: &Gpu,
        work: impl FnOnce(&wgpu::ComputePipeline, &wgpu::BindGroup) -> T,
    ) -> Result<T, GpuError> {
        let pipeline = self.pipeline.for_wgpu(gpu)?;
        let group = match self.group.get() {
            Some(group) => group,
            None => {
                let group = gpu.bind_group(pipeline, &self.buffers)?;
                self.group.get_or_init(|| group)
            }
        };
        Ok(work(&pipeline.inner, group))
    }

    /// Its kernel and buffers, for the Vulkan recorder.
    pub(crate) fn bound(&self, gpu: &Gpu) -> Result<&Bound, GpuError> {
        if let Some(bound) = self.bound.get() {
            return Ok(bound);
        }
        let bound = Bound::new(gpu, self.pipeline.compiled(gpu)?, &self.buffers)?;
        Ok(self.bound.get_or_init(|| bound))
    }

    /// The parameters that are immediates.
    pub(crate) fn immediates(&self) -> &[u32] {
        match &self.params {
            Params::Immediate(words) => words,
            Params::None | Params::Uniform(_) => &[],
        }
    }
}

impl Gpu {
    /// Checks the sizes of a launch's buffers, given in the order of its slots, and binds them.
    pub fn bind(&self, launch: &Launch, buffers: &[&Buffer]) -> Result<Dispatch, GpuError> {
        let bytes: Vec<u64> = buffers.iter().map(|buffer| buffer.bytes()).collect();
        launch.check_buffers(&bytes, |i, j| buffers[i].inner == buffers[j].inner)?;
        let pipeline = self.pipeline(launch)?;
        let mut uniforms = launch.uniforms().to_vec();
        let mut immediates = None;
        match launch.params() {
            Some((_, params)) if self.rungs().immediates => immediates = Some(words(params)),
            Some(params) => uniforms.push(params.clone()),
            None => {}
        }
        let uniforms: Vec<(u32, Buffer)> = uniforms
            .iter()
            .map(|(binding, contents)| {
                let buffer =
                    self.create(contents.len() as u64, BufferUsages::UNIFORM | BufferUsages::COPY_DST)?;
                self.queue.write_buffer(&buffer.inner, 0, contents);
                Ok((*binding, buffer))
            })
            .collect::<Result<_, GpuError>>()?;
        let slots = launch.slots().iter().zip(buffers);
        let buffers: Vec<(u32, Buffer, Access)> = slots
            .map(|(slot, buffer)| (slot.binding, (*buffer).clone(), slot.access))
            .chain(uniforms.iter().map(|(binding, buffer)| (*binding, buffer.clone(), Access::Read)))
            .collect();
        let params = match (immediates, launch.params()) {
            (Some(words), _) => Params::Immediate(words),
            // The parameters were pushed last.
            (None, Some(_)) => {
                uniforms.last().map_or(Params::None, |(_, buffer)| Params::Uniform(buffer.clone()))
            }
            (None, None) => Params::None,
        };
        let (group, bound) = (OnceLock::new(), OnceLock::new());
        Ok(Dispatch { pipeline, buffers, group, bound, params, groups: launch.groups() })
    }

    /// Binds buffers to the bindings of a kernel for wgpu.
    fn bind_group(
        &self,
        pipeline: &WgpuPipeline,
        buffers: &[(u32, Buffer, Access)],
    ) -> Result<wgpu::BindGroup, GpuError> {
        let entries: Vec<BindGroupEntry<'_>> = buffers
            .iter()
            .map(|(binding, buffer, _)| BindGroupEntry {
                binding: *binding,
                resource: buffer.inner.as_entire_binding(),
            })
            .collect();
        let scope = self.device.push_error_scope(ErrorFilter::Validation);
        let group = self.device.create_bind_group(&BindGroupDescriptor {
            label: None,
            layout: &pipeline.layout,
            entries: &entries,
        });
        match pollster::block_on(scope.pop()) {
            Some(error) => Err(wgpu_error(&error)),
            None => Ok(group),
        }
    }

    /// Changes a dispatch to the grid and parameters of another launch of the same variant on the same buffers.
    pub(crate) fn rebind(
        &self,
        dispatch: &mut Dispatch,
        launch: &Launch,
        buffers: &[&Buffer],
    ) -> Result<(), GpuError> {
        let bytes: Vec<u64> = buffers.iter().map(|buffer| buffer.bytes()).collect();
        launch.check_buffers(&bytes, |_, _| false)?;
        dispatch.groups = launch.groups();
        match (&mut dispatch.params, launch.params()) {
            (Params::Immediate(old), Some((_, new))) => *old = words(new),
            (Params::Uniform(buffer), Some((_, new))) => self.queue.write_buffer(&buffer.inner, 0, new),
            _ => {}
        }
        Ok(())
    }

    /// Changes one word of a dispatch's parameters, for the next submissions.
    pub(crate) fn patch(&self, dispatch: &mut Dispatch, offset: usize, value: u32) {
        match &mut dispatch.params {
            Params::Immediate(words) => words[offset / 4] = value,
            Params::Uniform(buffer) => {
                self.queue.write_buffer(&buffer.inner, offset as u64, &value.to_le_bytes());
            }
            Params::None => {}
        }
    }

    /// Runs dispatches in order, and waits for them.
    pub fn run(&self, dispatches: &[&Dispatch]) -> Result<(), GpuError> {
        self.compile_for_wgpu(dispatches.iter().copied())?;
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor::default());
        dispatches.iter().try_for_each(|dispatch| dispatch.record(self, &mut pass))?;
        drop(pass);
        self.queue.submit([encoder.finish()]);
        self.wait()
    }

    /// How long `dispatches` take in order, repeated `times` times in one submission: by the device's clock where it has
    /// timestamps, else by the host's.
    pub fn time(&self, dispatches: &[&Dispatch], times: u32) -> Result<Duration, GpuError> {
        // Not measured.
        self.compile_for_wgpu(dispatches.iter().copied())?;
        if !self.has_timestamps() {
            let start = Instant::now();
            let all: Vec<&Dispatch> = (0..times).flat_map(|_| dispatches.iter().copied()).collect();
            self.run(&all)?;
            return Ok(start.elapsed());
        }
        let queries = self.queries();
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let writes = ComputePassTimestampWrites {
            query_set: &queries,
            beginning_of_pass_write_index: Some(0),
            end_of_pass_write_index: Some(1),
        };
        let descriptor = ComputePassDescriptor { label: None, timestamp_writes: Some(writes) };
        let mut pass = encoder.begin_compute_pass(&descriptor);
        for _ in 0..times {
            dispatches.iter().try_for_each(|dispatch| dispatch.record(self, &mut pass))?;
        }
        drop(pass);
        self.elapsed(encoder, &queries)
    }

    /// How long `dispatches` take, averaged over `chain` runs: the median of several measurements on a warm device.
    pub fn median_time(
        &self,
        dispatches: &[&Dispatch],
        chain: u32,
        repetitions: usize,
    ) -> Result<Duration, GpuError> {
        self.warm_up(|| self.time(dispatches, chain).map(drop))?;
        median(repetitions, || Ok(self.time(dispatches, chain)? / chain.max(1)))
    }

    /// How long a kernel takes to copy `bytes`: the median of several measurements on a warm device.
    pub fn median_copy_time(&self, bytes: u64, repetitions: usize) -> Result<Duration, GpuError> {
        let (source, target) = (self.buffer(bytes)?, self.buffer(bytes)?);
        let dispatch = self.bind(&copy(self.rungs(), bytes)?, &[&source, &target])?;
        self.median_time(&[&dispatch], 8, repetitions)
    }

    /// An idle device lowers its clock and takes a while to raise it. A software adapter only compiles during the first
    /// run.
    pub(crate) fn warm_up(&self, mut work: impl FnMut() -> Result<(), GpuError>) -> Result<(), GpuError> {
        let software = self.adapter().kind == AdapterKind::Software;
        let enough = Duration::from_millis(if software { 0 } else { 500 });
        let start = Instant::now();
        loop {
            work()?;
            if start.elapsed() >= enough {
                return Ok(());
            }
        }
    }

    pub(crate) fn queries(&self) -> wgpu::QuerySet {
        self.device.create_query_set(&QuerySetDescriptor { label: None, ty: QueryType::Timestamp, count: 2 })
    }

    /// Submits, and returns the time between the two timestamps.
    fn elapsed(&self, encoder: CommandEncoder, queries: &wgpu::QuerySet) -> Result<Duration, GpuError> {
        let stamps = self.stamps(encoder, queries)?;
        Ok(self.duration(stamps[1].saturating_sub(stamps[0])))
    }

    /// Submits, and reads two timestamps back.
    fn stamps(&self, mut encoder: CommandEncoder, queries: &wgpu::QuerySet) -> Result<[u64; 2], GpuError> {
        let resolved = self.resolve(&mut encoder, queries)?;
        self.queue.submit([encoder.finish()]);
        let bytes = self.read(&resolved)?;
        Ok(bytemuck::pod_read_unaligned(&bytes))
    }
}

/// Parameters are whole words.
fn words(params: &[u8]) -> Vec<u32> {
    params.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]])).collect()
}
