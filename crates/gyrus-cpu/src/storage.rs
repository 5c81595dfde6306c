use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::CpuError;

/// Read-only bytes and their owner: a vector, or a range of a mapped file, without a copy.
#[derive(Clone)]
pub struct Bytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
}

impl Bytes {
    /// A range of the owner's bytes.
    pub fn new(owner: Arc<dyn AsRef<[u8]> + Send + Sync>, range: Range<usize>) -> Result<Bytes, CpuError> {
        let len = (*owner).as_ref().len();
        if range.start > range.end || range.end > len {
            return Err(CpuError::Range { start: range.start, end: range.end, len });
        }
        Ok(Bytes { owner, range })
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Bytes {
        let range = 0..bytes.len();
        Bytes { owner: Arc::new(bytes), range }
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({:?})", self.range)
    }
}

/// A mutable slice that the tasks of one parallel loop write in disjoint parts.
pub(crate) struct Disjoint<T> {
    start: *mut T,
    len: usize,
}

// SAFETY: access goes through `part` alone, whose contract forbids overlap between threads.
unsafe impl<T: Send> Sync for Disjoint<T> {}

impl<T> Disjoint<T> {
    pub(crate) fn new(slice: &mut [T]) -> Disjoint<T> {
        Disjoint { start: slice.as_mut_ptr(), len: slice.len() }
    }

    /// A mutable part of the slice.
    ///
    /// # Safety
    /// The slice given to [`Disjoint::new`] is still exclusively borrowed by the caller of the loop, and
    /// no two live parts overlap.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "part {range:?} of {}", self.len);
        // SAFETY: the assertion checks the bounds; the caller ensures that parts do not overlap.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// Writes `values` to every `step`-th element, starting at `at`.
    ///
    /// # Safety
    /// That of [`Disjoint::part`], for these elements only.
    pub(crate) unsafe fn scatter(&self, at: usize, step: usize, values: &[T])
    where
        T: Copy,
    {
        let last = values.len().checked_sub(1).and_then(|last| last.checked_mul(step)?.checked_add(at));
        assert!(
            last.is_none_or(|last| last < self.len),
            "{} elements from {at} of {}",
            values.len(),
            self.len
        );
        for (i, value) in values.iter().enumerate() {
            // SAFETY: the assertion checks the last of them; the caller ensures that nothing else accesses them.
            unsafe { self.start.add(at + i * step).write(*value) };
        }
    }
}
