//! The contents of the cache in the layout that all backends share.

use gyrus_kernels::{Backend, BackendError, CacheContents};

use super::CpuBackend;

impl CpuBackend {
    /// Bytes of a block of a group in one layer, if the caller names blocks and bytes that there are.
    fn checked(&self, group: usize, blocks: &[u32], bytes: usize) -> Result<usize, BackendError> {
        let plan = &self.executor.model.plan;
        let (Some(spec), Some(&pool)) = (plan.kv.get(group), self.executor.blocks.get(group)) else {
            return Err(BackendError::UnsoundBatch);
        };
        let is_sound = blocks.iter().all(|block| (*block as usize) < pool)
            && bytes == blocks.len() * spec.bytes_per_block(plan.precision);
        if is_sound { Ok(spec.block_bytes(plan.precision)) } else { Err(BackendError::UnsoundBatch) }
    }

    fn check_record(&self, record: u32, bytes: usize) -> Result<(), BackendError> {
        let all = self.executor.model.plan.record_bytes();
        let is_sound = (record as usize) < self.executor.states.records() && bytes == all;
        if is_sound { Ok(()) } else { Err(BackendError::UnsoundBatch) }
    }
}

impl CacheContents for CpuBackend {
    fn read_blocks(&mut self, group: usize, blocks: &[u32], bytes: &mut [u8]) -> Result<(), BackendError> {
        let one = self.checked(group, blocks, bytes.len())?;
        let store = &self.executor.caches[group];
        let layers = store.group().layers;
        for (i, part) in bytes.chunks_exact_mut(2 * one).enumerate() {
            let (keys, values) = part.split_at_mut(one);
            store.read_block(i % layers, blocks[i / layers], keys, values);
        }
        Ok(())
    }

    fn write_blocks(&mut self, group: usize, blocks: &[u32], bytes: &[u8]) -> Result<(), BackendError> {
        let one = self.checked(group, blocks, bytes.len())?;
        let store = &mut self.executor.caches[group];
        let layers = store.group().layers;
        for (i, part) in bytes.chunks_exact(2 * one).enumerate() {
            let (keys, values) = part.split_at(one);
            store.write_block(i % layers, blocks[i / layers], keys, values);
        }
        Ok(())
    }

    fn shift_blocks(
        &mut self,
        group: usize,
        moves: &[[u32; 2]],
        by: i32,
        length: u32,
    ) -> Result<(), BackendError> {
        let Some(spec) = self.plan().kv.get(group) else { return Err(BackendError::UnsoundBatch) };
        let mut bytes = vec![0; spec.bytes_per_block(self.plan().precision)];
        for [from, to] in moves {
            self.read_blocks(group, &[*from], &mut bytes)?;
            self.plan().shift_block(group, &mut bytes, by, length);
            self.write_blocks(group, &[*to], &bytes)?;
        }
        Ok(())
    }

    fn read_record(&mut self, record: u32, bytes: &mut [u8]) -> Result<(), BackendError> {
        self.check_record(record, bytes.len())?;
        let mut values = vec![0.0; bytes.len() / 4];
        self.executor.states.read_record(&self.executor.model.plan.delta, record, &mut values);
        bytes
            .chunks_exact_mut(4)
            .zip(values)
            .for_each(|(to, value)| to.copy_from_slice(&value.to_le_bytes()));
        Ok(())
    }

    fn write_record(&mut self, record: u32, bytes: &[u8]) -> Result<(), BackendError> {
        self.check_record(record, bytes.len())?;
        let (words, _) = bytes.as_chunks::<4>();
        let values: Vec<f32> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
        self.executor.states.write_record(&self.executor.model.plan.delta, record, &values);
        Ok(())
    }
}
