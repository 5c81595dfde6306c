//! The contents of the cache in the layout that all backends share, which is the device's own.

use std::ops::Range;

use gyrus_kernels::call::{KvCopyCall, KvShiftCall, engine};
use gyrus_kernels::{BackendError, CacheContents, DeltaLayer, KV_BLOCK, KvLayer, Rope};
use wgpu::{BufferUsages, MapMode};

use crate::backend::GpuBackend;
use crate::buffer::Buffer;
use crate::error::GpuError;
use crate::lower::Operand;
use crate::step::buffers_of;

/// A part of a buffer, and where it is among the bytes of the caller.
struct Place<'a> {
    buffer: &'a Buffer,
    at: u64,
    bytes: Range<usize>,
}

impl GpuBackend {
    /// Where the bytes of blocks are, if the caller names blocks and bytes that there are.
    fn block_places(
        &self,
        group: usize,
        blocks: &[u32],
        bytes: usize,
    ) -> Result<Vec<Place<'_>>, BackendError> {
        let (Some(spec), Some(&pool)) = (self.plan.kv.get(group), self.kv.blocks.get(group)) else {
            return Err(BackendError::UnsoundBatch);
        };
        let is_sound = blocks.iter().all(|block| (*block as usize) < pool)
            && bytes == blocks.len() * spec.bytes_per_block(self.plan.precision);
        if !is_sound {
            return Err(BackendError::UnsoundBatch);
        }
        let one = spec.block_bytes(self.plan.precision);
        let mut places = Vec::with_capacity(2 * blocks.len() * spec.layers);
        for block in blocks {
            for index in 0..spec.layers as u16 {
                let layer = KvLayer { group: group as u8, index };
                for operand in [Operand::Keys(layer), Operand::Values(layer)] {
                    let first = places.len() * one;
                    let at = u64::from(*block) * one as u64;
                    places.push(Place { buffer: self.buffers.get(&operand)?, at, bytes: first..first + one });
                }
            }
        }
        Ok(places)
    }

    /// Where the bytes of a record are.
    fn record_places(&self, record: u32, bytes: usize) -> Result<Vec<Place<'_>>, BackendError> {
        if record as usize >= self.kv.records || bytes != self.plan.record_bytes() {
            return Err(BackendError::UnsoundBatch);
        }
        let mut first = 0;
        let mut places = Vec::with_capacity(self.plan.delta.len());
        for (shape, layer) in self.plan.delta.iter().zip(0..) {
            let one = 4 * shape.state_elems();
            let buffer = self.buffers.get(&Operand::State(DeltaLayer(layer)))?;
            places.push(Place { buffer, at: u64::from(record) * one as u64, bytes: first..first + one });
            first += one;
        }
        Ok(places)
    }

    fn read_places(&self, places: &[Place<'_>], bytes: &mut [u8]) -> Result<(), GpuError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let gpu = &self.gpu;
        let staging = gpu.create(bytes.len() as u64, BufferUsages::MAP_READ | BufferUsages::COPY_DST)?;
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        for Place { buffer, at, bytes } in places {
            let (to, size) = (bytes.start as u64, bytes.len() as u64);
            encoder.copy_buffer_to_buffer(&buffer.inner, *at, &staging.inner, to, size);
        }
        gpu.queue.submit([encoder.finish()]);
        staging.inner.slice(..).map_async(MapMode::Read, |_| {});
        gpu.wait()?;
        let mapped =
            staging.inner.get_mapped_range(..).map_err(|error| GpuError::internal(error.to_string()))?;
        bytes.copy_from_slice(&mapped[..bytes.len()]);
        Ok(())
    }

    /// Rotates keys and moves values of blocks, layer by layer.
    fn shift_on_device(
        &self,
        group: usize,
        moves: &[[u32; 2]],
        by: i32,
        length: u32,
    ) -> Result<(), GpuError> {
        let gpu = &self.gpu;
        let cache = self.buffers.paged()[group].cache;
        let slots = |[from, to]: &[u32; 2]| {
            let (from, to) = (from * KV_BLOCK as u32, to * KV_BLOCK as u32);
            (0..KV_BLOCK as u32).map(move |slot| [from + slot, to + slot])
        };
        let slots: Vec<[u32; 2]> = moves.iter().flat_map(slots).collect();
        let mut lists: Vec<(&Rope, Buffer, Buffer)> = Vec::new();
        for (rope, index) in self.plan.key_ropes(group).into_iter().zip(0..) {
            let layer = KvLayer { group: group as u8, index };
            let [keys, values] =
                [self.buffers.get(&Operand::Keys(layer))?, self.buffers.get(&Operand::Values(layer))?];
            let Some(rope) = rope else {
                let copy = KvCopyCall { cache, pairs: u32::try_from(moves.len()).unwrap_or(u32::MAX) };
                let pairs = gpu.upload(bytemuck::cast_slice(&copy.pairs(moves)?))?;
                let launch = copy.launch(gpu.rungs())?;
                let named = [("k_cache", keys.clone()), ("v_cache", values.clone()), ("pairs", pairs)];
                gpu.run(&[&gpu.bind(&launch, &buffers_of(&launch, &named)?)?])?;
                continue;
            };
            let call = KvShiftCall {
                in_place: false,
                ..KvShiftCall::new(cache, rope, by, u32::try_from(slots.len()).unwrap_or(u32::MAX))
            };
            // One list serves all layers, and one of frequencies all layers of a rope.
            if !lists.iter().any(|(known, ..)| std::ptr::eq(*known, rope)) {
                let moves = gpu.upload(bytemuck::cast_slice(&call.moves(&slots)?))?;
                let turns = gpu.upload(bytemuck::cast_slice(&engine::turns(rope, length as usize)))?;
                lists.push((rope, moves, turns));
            }
            let Some((_, moved, turns)) = lists.iter().find(|(known, ..)| std::ptr::eq(*known, rope)) else {
                continue;
            };
            let launch = call.launch(gpu.rungs())?;
            let named = [
                ("k_cache", keys.clone()),
                ("v_cache", values.clone()),
                ("moves", moved.clone()),
                ("turns", turns.clone()),
            ];
            let dispatch = gpu.bind(&launch, &buffers_of(&launch, &named)?)?;
            gpu.run(&[&dispatch])?;
        }
        gpu.flush()
    }

    fn write_places(&self, places: &[Place<'_>], bytes: &[u8]) -> Result<(), GpuError> {
        for place in places {
            self.gpu.write_at(place.buffer, place.at, &bytes[place.bytes.clone()])?;
        }
        self.gpu.flush()
    }
}

impl CacheContents for GpuBackend {
    fn read_blocks(&mut self, group: usize, blocks: &[u32], bytes: &mut [u8]) -> Result<(), BackendError> {
        self.settle()?;
        Ok(self.read_places(&self.block_places(group, blocks, bytes.len())?, bytes)?)
    }

    fn write_blocks(&mut self, group: usize, blocks: &[u32], bytes: &[u8]) -> Result<(), BackendError> {
        self.settle()?;
        Ok(self.write_places(&self.block_places(group, blocks, bytes.len())?, bytes)?)
    }

    fn shift_blocks(
        &mut self,
        group: usize,
        moves: &[[u32; 2]],
        by: i32,
        length: u32,
    ) -> Result<(), BackendError> {
        self.settle()?;
        let pool = self.kv.blocks.get(group).copied().unwrap_or(0);
        if moves.as_flattened().iter().any(|block| *block as usize >= pool) {
            return Err(BackendError::UnsoundBatch);
        }
        Ok(self.shift_on_device(group, moves, by, length)?)
    }

    fn read_record(&mut self, record: u32, bytes: &mut [u8]) -> Result<(), BackendError> {
        self.settle()?;
        Ok(self.read_places(&self.record_places(record, bytes.len())?, bytes)?)
    }

    fn write_record(&mut self, record: u32, bytes: &[u8]) -> Result<(), BackendError> {
        self.settle()?;
        Ok(self.write_places(&self.record_places(record, bytes.len())?, bytes)?)
    }
}
