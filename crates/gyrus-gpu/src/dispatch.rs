use std::sync::Arc;
use std::time::{Duration, Instant};

use gyrus_kernels::Launch;
use wgpu::{
    BindGroupDescriptor, BindGroupEntry, BufferDescriptor, BufferUsages, CommandEncoder, ComputePass,
    ComputePassDescriptor, ComputePassTimestampWrites, ErrorFilter, QuerySetDescriptor, QueryType,
};

use crate::buffer::Buffer;
use crate::device::{Gpu, explained};
use crate::error::GpuError;
use crate::pipeline::Pipeline;

/// A kernel bound to its buffers: all that is left is to run it, as often as one likes.
#[derive(Debug)]
pub struct Dispatch {
    pipeline: Arc<Pipeline>,
    group: wgpu::BindGroup,
    immediates: Vec<u8>,
    groups: [u32; 3],
}

impl Dispatch {
    fn record(&self, pass: &mut ComputePass<'_>) {
        pass.set_pipeline(&self.pipeline.inner);
        pass.set_bind_group(0, &self.group, &[]);
        if !self.immediates.is_empty() {
            pass.set_immediates(0, &self.immediates);
        }
        let [x, y, z] = self.groups;
        pass.dispatch_workgroups(x, y, z);
    }
}

impl Gpu {
    /// Checks a launch against its buffers, given in the order of its slots, and binds them.
    pub fn bind(&self, launch: &Launch, buffers: &[&Buffer]) -> Result<Dispatch, GpuError> {
        let bytes: Vec<u64> = buffers.iter().map(|buffer| buffer.bytes()).collect();
        launch.check_buffers(&bytes, |i, j| buffers[i].inner == buffers[j].inner)?;
        let pipeline = self.pipeline(launch)?;
        let mut uniforms = launch.uniforms.clone();
        let mut immediates = Vec::new();
        match &launch.params {
            Some((_, params)) if self.rungs().immediates => immediates.clone_from(params),
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
        let entry = |binding, buffer: &Buffer| (binding, buffer.inner.clone());
        let bound: Vec<(u32, wgpu::Buffer)> = launch
            .slots
            .iter()
            .zip(buffers)
            .map(|(slot, buffer)| entry(slot.binding, buffer))
            .chain(uniforms.iter().map(|(binding, buffer)| entry(*binding, buffer)))
            .collect();
        let entries: Vec<BindGroupEntry<'_>> = bound
            .iter()
            .map(|(binding, buffer)| BindGroupEntry {
                binding: *binding,
                resource: buffer.as_entire_binding(),
            })
            .collect();
        let scope = self.device.push_error_scope(ErrorFilter::Validation);
        let group = self.device.create_bind_group(&BindGroupDescriptor {
            label: Some(&launch.variant.name),
            layout: &pipeline.layout,
            entries: &entries,
        });
        if let Some(error) = pollster::block_on(scope.pop()) {
            return Err(explained(&error));
        }
        Ok(Dispatch { pipeline, group, immediates, groups: launch.groups })
    }

    /// Runs dispatches one after the other, and waits for the last.
    pub fn run(&self, dispatches: &[&Dispatch]) -> Result<(), GpuError> {
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor::default());
        dispatches.iter().for_each(|dispatch| dispatch.record(&mut pass));
        drop(pass);
        self.queue.submit([encoder.finish()]);
        self.wait()
    }

    /// How long `dispatches` take, one after the other, `times` over in one submission: by the device's clock
    /// where it has one.
    pub fn time(&self, dispatches: &[&Dispatch], times: u32) -> Result<Duration, GpuError> {
        if !self.has_timestamps() {
            let start = Instant::now();
            let all: Vec<&Dispatch> = (0..times).flat_map(|_| dispatches.iter().copied()).collect();
            self.run(&all)?;
            return Ok(start.elapsed());
        }
        let queries = self.device.create_query_set(&QuerySetDescriptor {
            label: None,
            ty: QueryType::Timestamp,
            count: 2,
        });
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let writes = ComputePassTimestampWrites {
            query_set: &queries,
            beginning_of_pass_write_index: Some(0),
            end_of_pass_write_index: Some(1),
        };
        let descriptor = ComputePassDescriptor { label: None, timestamp_writes: Some(writes) };
        let mut pass = encoder.begin_compute_pass(&descriptor);
        for _ in 0..times {
            dispatches.iter().for_each(|dispatch| dispatch.record(&mut pass));
        }
        drop(pass);
        let stamps = self.stamps(encoder, &queries)?;
        let ticks = stamps[1].saturating_sub(stamps[0]) as f64;
        Ok(Duration::from_secs_f64(ticks * f64::from(self.queue.get_timestamp_period()) * 1e-9))
    }

    /// Submits and reads two timestamps back.
    fn stamps(&self, mut encoder: CommandEncoder, queries: &wgpu::QuerySet) -> Result<[u64; 2], GpuError> {
        let resolved = self.device.create_buffer(&BufferDescriptor {
            label: None,
            size: 256,
            usage: BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        });
        let staging = self.buffer(16)?;
        encoder.resolve_query_set(queries, 0..2, &resolved, 0);
        encoder.copy_buffer_to_buffer(&resolved, 0, &staging.inner, 0, 16);
        self.queue.submit([encoder.finish()]);
        let bytes = self.read(&staging)?;
        Ok(bytemuck::pod_read_unaligned(&bytes))
    }
}
