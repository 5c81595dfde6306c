//! Memory for repacked weights, in huge pages where the system supports them.
//!
//! A matrix-vector product enters a new 4 KiB page every quarter of a microsecond, and the hardware
//! prefetcher stops at each page boundary. Huge pages made large matrix-vector products 1.4 times as fast.
//! Many matrices are smaller than a huge page, so several share a slab. A slab is unmapped when its last
//! matrix is dropped.

use std::io::ErrorKind;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use memmap2::MmapMut;

use crate::CpuError;

/// Bytes of a slab. A matrix of at least this size has its own mapping.
const SLAB: usize = 32 << 20;

/// Bytes of a cache line, the alignment of parts.
const LINE: usize = 64;

/// The slabs of the process.
static SLABS: Slabs = Slabs::new();

/// The slab that parts are allocated from, and the bytes of it in use. It does not keep the slab: when a model is dropped, so is
/// the slab that it began.
struct Slabs(Mutex<(Weak<Slab>, usize)>);

impl Slabs {
    const fn new() -> Slabs {
        Slabs(Mutex::new((Weak::new(), 0)))
    }

    fn zeroed(&self, len: usize) -> Result<SlabBytes, CpuError> {
        if len >= SLAB {
            return Ok(SlabBytes { slab: Slab::new(len)?, offset: 0, len });
        }
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (slab, offset) = match current.0.upgrade() {
            Some(slab) if current.1 + len <= SLAB => (slab, current.1),
            _ => (Slab::new(SLAB)?, 0),
        };
        *current = (Arc::downgrade(&slab), (offset + len).next_multiple_of(LINE));
        Ok(SlabBytes { slab, offset, len })
    }
}

struct Slab {
    start: *mut u8,
    /// Owns the mapping.
    _map: MmapMut,
}

// SAFETY: the slab itself is never accessed, only its parts, each through its one owner.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Slab {
    fn new(len: usize) -> Result<Arc<Slab>, CpuError> {
        let mut map = MmapMut::map_anon(len).map_err(|error| match error.kind() {
            ErrorKind::Unsupported => CpuError::Unmapped { bytes: len },
            _ => CpuError::Memory { bytes: len },
        })?;
        // A hint: without huge pages the kernels are slower but correct.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Arc::new(Slab { start: map.as_mut_ptr(), _map: map }))
    }
}

/// A zero-initialised part of a slab, aligned to a cache line, with one owner.
pub(crate) struct SlabBytes {
    slab: Arc<Slab>,
    offset: usize,
    len: usize,
}

impl SlabBytes {
    /// Allocates `len` zero bytes, or reports that the system is out of memory.
    pub(crate) fn zeroed(len: usize) -> Result<SlabBytes, CpuError> {
        SLABS.zeroed(len)
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: `offset + len` is within the slab. No other part overlaps, because offsets only grow and
        // each is used once. `&self` excludes `as_mut_slice`.
        unsafe { std::slice::from_raw_parts(self.slab.start.add(self.offset), self.len) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.slab.start.add(self.offset), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_zeroed_aligned_and_disjoint() {
        // Slabs of its own: other tests allocate from those of the process meanwhile.
        let of_test = Slabs::new();
        let mut parts: Vec<SlabBytes> = Vec::new();
        for len in [1, 63, 64, 65, 5 << 20, SLAB - 1, 7, SLAB + 3, 20 << 20, 0] {
            let mut part = of_test.zeroed(len).unwrap();
            assert!(part.as_slice().len() == len && part.as_slice().iter().all(|&b| b == 0));
            assert!(part.as_slice().as_ptr().addr().is_multiple_of(LINE));
            part.as_mut_slice().fill(parts.len() as u8 + 1);
            parts.push(part);
        }
        for (i, part) in parts.iter().enumerate() {
            assert!(part.as_slice().iter().all(|&b| b == i as u8 + 1), "part {i} was overwritten");
        }
        // Nothing stays mapped.
        let slabs: Vec<Weak<Slab>> = parts.iter().map(|part| Arc::downgrade(&part.slab)).collect();
        drop(parts);
        assert!(slabs.iter().all(|slab| slab.strong_count() == 0));
    }
}
