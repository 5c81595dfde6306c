use std::collections::HashMap;
use std::ops::Range;

use gyrus_tensor::{DType, Shape};

use super::error::{GgmlError, GgmlProblem};
use crate::gguf::dtype_of;
use crate::{Bytes, TensorView};

const MAGIC: [u8; 4] = *b"lmgg";
const MAX_NAME_BYTES: i32 = 256;
/// The longest token of text; the longest one of a published file has 128 bytes.
const MAX_TOKEN_BYTES: usize = 512;

/// The hyperparameters at the beginning of a Whisper file, in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the format")]
pub struct WhisperHeader {
    pub n_vocab: u32,
    pub n_audio_ctx: u32,
    pub n_audio_state: u32,
    pub n_audio_head: u32,
    pub n_audio_layer: u32,
    pub n_text_ctx: u32,
    pub n_text_state: u32,
    pub n_text_head: u32,
    pub n_text_layer: u32,
    pub n_mels: u32,
    pub ftype: u32,
}

/// One Whisper file of whisper.cpp that has passed every check.
#[derive(Debug)]
pub struct Ggml {
    bytes: Bytes,
    header: WhisperHeader,
    /// Bands and frequencies of the mel filters.
    filters: (usize, usize),
    filters_at: usize,
    /// The bytes of each token.
    tokens: Vec<Range<usize>>,
    tensors: Vec<Tensor>,
    by_name: HashMap<String, usize>,
}

#[derive(Debug)]
struct Tensor {
    name: String,
    dtype: DType,
    shape: Shape,
    data: Range<usize>,
}

impl Ggml {
    /// Checks bytes that are already at hand.
    pub fn parse(bytes: Bytes) -> Result<Ggml, GgmlError> {
        let mut cursor = Cursor { bytes: &bytes, at: 0, subject: Err("header") };
        let magic = cursor.array("the magic")?;
        if magic != MAGIC {
            return cursor.fail_at(0, GgmlProblem::Magic { found: magic });
        }
        let header = header(&mut cursor)?;

        cursor.subject = Err("mel filters");
        let bands = cursor.count("the number of bands")?;
        let bins = cursor.count("the number of frequencies")?;
        let filter_bytes = (bands as u64).saturating_mul(bins as u64).saturating_mul(4);
        let filters_at = cursor.at;
        cursor.take(filter_bytes, "the filters")?;

        cursor.subject = Err("vocabulary");
        let count = cursor.count("the number of tokens")?;
        let mut tokens = Vec::new();
        for n in 0..count {
            let length_at = cursor.at;
            let length = cursor.count("the length of a token")?;
            if length > MAX_TOKEN_BYTES {
                return cursor.fail_at(length_at, GgmlProblem::Token { n, bytes: length });
            }
            let start = cursor.at;
            cursor.take(length as u64, "a token")?;
            tokens.push(start..cursor.at);
        }

        let (mut tensors, mut by_name) = (Vec::new(), HashMap::new());
        let mut starts = Vec::new();
        while cursor.at < bytes.len() {
            let start = cursor.at;
            let tensor = tensor(&mut cursor, tensors.len())?;
            if let Some(&first) = by_name.get(&tensor.name) {
                let first: usize = starts[first];
                return cursor.fail_at(start, GgmlProblem::Duplicate { first: first as u64 });
            }
            by_name.insert(tensor.name.clone(), tensors.len());
            starts.push(start);
            tensors.push(tensor);
        }
        Ok(Ggml { header, filters: (bands, bins), filters_at, tokens, tensors, by_name, bytes })
    }

    /// The hyperparameters.
    pub fn header(&self) -> &WhisperHeader {
        &self.header
    }

    /// The mel filters: bands, frequencies, and the weights `[bands, frequencies]`.
    pub fn filters(&self) -> (usize, usize, Vec<f32>) {
        let (bands, bins) = self.filters;
        let bytes = &self.bytes[self.filters_at..self.filters_at + bands * bins * 4];
        let (values, _) = bytes.as_chunks::<4>();
        (bands, bins, values.iter().map(|value| f32::from_le_bytes(*value)).collect())
    }

    /// The bytes of each token of text; the position is the id. Special tokens are not among them.
    pub fn tokens(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.tokens.iter().map(|range| &self.bytes[range.clone()])
    }

    /// All tensors, in file order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorView<'_>> {
        self.tensors.iter().map(|tensor| self.view(tensor))
    }

    /// A tensor by name.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.by_name.get(name).map(|&n| self.view(&self.tensors[n]))
    }

    /// The length of the file.
    pub fn file_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    pub(crate) fn raw(&self) -> &Bytes {
        &self.bytes
    }

    fn view<'a>(&'a self, tensor: &'a Tensor) -> TensorView<'a> {
        TensorView {
            name: &tensor.name,
            dtype: tensor.dtype,
            shape: tensor.shape,
            data: &self.bytes[tensor.data.clone()],
            at: tensor.data.start as u64,
            shard: 0,
        }
    }
}

fn header(cursor: &mut Cursor<'_>) -> Result<WhisperHeader, GgmlError> {
    let mut next = |what: &'static str| cursor.count(what).map(|value| value as u32);
    Ok(WhisperHeader {
        n_vocab: next("n_vocab")?,
        n_audio_ctx: next("n_audio_ctx")?,
        n_audio_state: next("n_audio_state")?,
        n_audio_head: next("n_audio_head")?,
        n_audio_layer: next("n_audio_layer")?,
        n_text_ctx: next("n_text_ctx")?,
        n_text_state: next("n_text_state")?,
        n_text_head: next("n_text_head")?,
        n_text_layer: next("n_text_layer")?,
        n_mels: next("n_mels")?,
        ftype: next("ftype")?,
    })
}

fn tensor(cursor: &mut Cursor<'_>, n: usize) -> Result<Tensor, GgmlError> {
    cursor.subject = Err("description of a tensor");
    let rank_at = cursor.at;
    let rank = cursor.i32("the number of dimensions")?;
    if !(1..=4).contains(&rank) {
        return cursor.fail_at(rank_at, GgmlProblem::Rank { rank });
    }
    let name_at = cursor.at;
    let name_bytes = cursor.i32("the length of a name")?;
    let dtype_at = cursor.at;
    let id = cursor.i32("the tensor type")?;
    let dims_at = cursor.at;
    let mut dims = [0usize; 4];
    let rank = rank as usize;
    for axis in 0..rank {
        let dim = cursor.count("a dimension")?;
        if dim == 0 {
            return cursor.fail_at(dims_at + 4 * axis, GgmlProblem::ZeroDim { axis });
        }
        // The file has the contiguous dimension first.
        dims[rank - 1 - axis] = dim;
    }
    let bad_name = GgmlProblem::Name { n, bytes: name_bytes };
    if !(1..=MAX_NAME_BYTES).contains(&name_bytes) {
        return cursor.fail_at(name_at, bad_name);
    }
    let Ok(name) = str::from_utf8(cursor.take(name_bytes as u64, "a name")?) else {
        return cursor.fail_at(name_at, bad_name);
    };
    let name = name.to_owned();
    cursor.subject = Ok(name.clone());
    let Some(dtype) = u32::try_from(id).ok().and_then(dtype_of) else {
        return cursor.fail_at(dtype_at, GgmlProblem::DType { id });
    };
    let sized = Shape::new(&dims[..rank]).and_then(|shape| Ok((shape, dtype.bytes_of(&shape)?)));
    let (shape, bytes) = match sized {
        Ok(sized) => sized,
        Err(error) => return cursor.fail_at(dims_at, error.into()),
    };
    let start = cursor.at;
    cursor.take(bytes as u64, "the data")?;
    Ok(Tensor { name, dtype, shape, data: start..cursor.at })
}

/// Reads fields in sequence, never past the end of the file.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    subject: Result<String, &'static str>,
}

impl<'a> Cursor<'a> {
    fn fail_at<T>(&self, at: usize, problem: GgmlProblem) -> Result<T, GgmlError> {
        Err(GgmlError { subject: self.subject.clone(), at: at as u64, problem })
    }

    fn take(&mut self, n: u64, what: &'static str) -> Result<&'a [u8], GgmlError> {
        let left = self.bytes.len() - self.at;
        match usize::try_from(n) {
            Ok(n) if n <= left => {
                let taken = &self.bytes[self.at..self.at + n];
                self.at += n;
                Ok(taken)
            }
            _ => self.fail_at(self.at, GgmlProblem::Truncated { what, needed: n, left: left as u64 }),
        }
    }

    fn array(&mut self, what: &'static str) -> Result<[u8; 4], GgmlError> {
        let start = self.at;
        let taken = self.take(4, what)?;
        match taken.try_into() {
            Ok(array) => Ok(array),
            Err(_) => self.fail_at(start, GgmlProblem::Truncated { what, needed: 4, left: 0 }),
        }
    }

    fn i32(&mut self, what: &'static str) -> Result<i32, GgmlError> {
        self.array(what).map(i32::from_le_bytes)
    }

    /// A number that is not negative.
    fn count(&mut self, what: &'static str) -> Result<usize, GgmlError> {
        let start = self.at;
        let value = self.i32(what)?;
        match usize::try_from(value) {
            Ok(count) => Ok(count),
            Err(_) => self.fail_at(start, GgmlProblem::Negative { what, value }),
        }
    }
}
