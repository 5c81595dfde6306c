use super::error::{GgufError, GgufProblem, Subject};
use super::value::ValueType;

/// Reads fields in sequence, never past the end of the file.
///
/// It tracks the current key or tensor, so every error names it.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    pub(super) subject: Subject,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, at: 0, subject: Subject::Header }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// An error about the field at the current offset.
    pub(super) fn fail<T>(&self, problem: impl Into<GgufProblem>) -> Result<T, GgufError> {
        self.fail_at(self.at, problem)
    }

    /// An error about the field at an earlier offset.
    pub(super) fn fail_at<T>(&self, at: usize, problem: impl Into<GgufProblem>) -> Result<T, GgufError> {
        Err(GgufError { subject: self.subject.clone(), at: at as u64, problem: problem.into() })
    }

    pub(super) fn take(&mut self, n: u64, what: &'static str) -> Result<&'a [u8], GgufError> {
        let left = self.left();
        match usize::try_from(n) {
            Ok(n) if n <= left => {
                let taken = &self.bytes[self.at..self.at + n];
                self.at += n;
                Ok(taken)
            }
            _ => self.fail(GgufProblem::Truncated { what, needed: n, left: left as u64 }),
        }
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        let taken = self.take(N as u64, what)?;
        Ok(taken.try_into().expect("`take` returns exactly N bytes"))
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// The bytes of a length-prefixed string.
    pub(super) fn string(&mut self, what: &'static str) -> Result<&'a [u8], GgufError> {
        let start = self.at;
        let length = self.u64(what)?;
        self.take(length, what).inspect_err(|_| self.at = start)
    }

    /// A name: non-empty UTF-8 of at most `max` bytes.
    pub(super) fn name(&mut self, max: u64) -> Result<&'a str, GgufError> {
        let start = self.at;
        let length = self.u64("a name's length")?;
        if length == 0 {
            return self.fail_at(start, GgufProblem::EmptyName);
        }
        if length > max {
            return self.fail_at(start, GgufProblem::LongName { bytes: length, max });
        }
        let bytes = self.take(length, "a name")?;
        match str::from_utf8(bytes) {
            Ok(name) => Ok(name),
            Err(e) => self.fail_at(start, GgufProblem::Utf8 { valid: e.valid_up_to() }),
        }
    }

    /// A number of records of at least `size` bytes each. A count that exceeds the rest of the file is an error,
    /// so the caller may allocate by it.
    pub(super) fn count(&mut self, what: &'static str, size: usize) -> Result<usize, GgufError> {
        let start = self.at;
        let count = self.u64(what)?;
        self.check_count(count, what, size, start)
    }

    pub(super) fn check_count(
        &self,
        count: u64,
        what: &'static str,
        size: usize,
        start: usize,
    ) -> Result<usize, GgufError> {
        let left = self.left();
        // Record indices are 32-bit.
        match u32::try_from(count) {
            Ok(count) if count as usize <= left / size => Ok(count as usize),
            _ => self.fail_at(start, GgufProblem::Count { what, count, left: left as u64 }),
        }
    }

    pub(super) fn value_type(&mut self) -> Result<ValueType, GgufError> {
        let start = self.at;
        let id = self.u32("a value type")?;
        match ValueType::from_id(id) {
            Some(kind) => Ok(kind),
            None => self.fail_at(start, GgufProblem::ValueType { id }),
        }
    }
}
