//! Models split over several GGUF files, named `NAME-00001-of-00003.gguf` and so on.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::gguf::Gguf;
use crate::quote::Quote;
use crate::{Access, FormatError, Problem};

/// A parsed file name: `STEM-NUMBER-of-OF.EXTENSION`, numbered from 1.
struct Part<'a> {
    stem: &'a str,
    number: u32,
    of: u32,
    extension: &'a str,
}

fn part(path: &Path) -> Option<Part<'_>> {
    let name = path.file_name()?.to_str()?;
    let (rest, extension) = name.rsplit_once('.')?;
    let (rest, of) = rest.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| {
        let plain = text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
        plain.then(|| text.parse::<u32>().ok()).flatten()
    };
    let (number, of) = (digits(number)?, digits(of)?);
    (1..=of).contains(&number).then_some(Part { stem, number, of, extension })
}

/// Whether the file name is that of a part.
pub(super) fn is_numbered(path: &Path) -> bool {
    part(path).is_some()
}

/// Whether the file name is that of a part other than the first.
pub(super) fn is_later_part(path: &Path) -> bool {
    part(path).is_some_and(|p| p.number > 1)
}

/// Opens the other parts of a split model, given any of them, and checks that they are consistent.
/// Returns a file that is not split alone.
pub(super) fn open_all(
    path: &Path,
    opened: Gguf,
    access: Access,
) -> Result<Vec<(PathBuf, Gguf)>, FormatError> {
    let count = split_count(path, &opened)?;
    if count <= 1 {
        return Ok(vec![(path.to_owned(), opened)]);
    }
    let Some(part) = part(path).filter(|p| p.of == count) else {
        return Err(FormatError::new(
            path,
            Problem::Split(format!(
                "the file is one of {count} parts, but its name does not end in -NNNNN-of-{count:05}.gguf; restore the \
                 original names, so the other parts can be found"
            )),
        ));
    };
    let mut opened = Some(opened);
    let mut parts: Vec<(PathBuf, Gguf)> = Vec::new();
    for number in 1..=count {
        let name = format!("{}-{number:05}-of-{count:05}.{}", part.stem, part.extension);
        let part_path = path.with_file_name(name);
        let file = match opened.take_if(|_| number == part.number) {
            Some(file) => file,
            None => Gguf::open_with(&part_path, access)?,
        };
        check_part(&part_path, &file, number, count)?;
        parts.push((part_path, file));
    }
    check_parts(path, &parts)?;
    Ok(parts)
}

fn split_count(path: &Path, file: &Gguf) -> Result<u32, FormatError> {
    let count = file.metadata().get::<u32>("split.count").map_err(|e| split_error(path, e.to_string()))?;
    Ok(count.unwrap_or(0))
}

fn check_part(path: &Path, file: &Gguf, number: u32, count: u32) -> Result<(), FormatError> {
    let declared = split_count(path, file)?;
    if declared != count {
        return Err(split_error(
            path,
            format!("key 'split.count' is {declared}, but {count} in the other parts"),
        ));
    }
    // Parts are numbered from 0 in the metadata and from 1 in the file name.
    let found = file.metadata().require::<u32>("split.no").map_err(|e| split_error(path, e.to_string()))?;
    if found != number - 1 {
        return Err(split_error(
            path,
            format!("key 'split.no' is {found}, but the file name means {}", number - 1),
        ));
    }
    Ok(())
}

fn check_parts(path: &Path, parts: &[(PathBuf, Gguf)]) -> Result<(), FormatError> {
    let mut seen: HashMap<&str, &Path> = HashMap::new();
    for (part_path, file) in parts {
        for tensor in file.tensors() {
            if let Some(first) = seen.insert(tensor.name, part_path) {
                let first = first.file_name().unwrap_or_default().to_string_lossy();
                return Err(split_error(
                    part_path,
                    format!("tensor {} is already in {first}", Quote(tensor.name)),
                ));
            }
        }
    }
    let first = parts.first().map(|(_, file)| file.metadata().get::<u64>("split.tensors.count"));
    let declared = first.transpose().map_err(|e| split_error(path, e.to_string()))?.flatten();
    match declared {
        Some(declared) if declared != seen.len() as u64 => Err(split_error(
            path,
            format!("key 'split.tensors.count' is {declared}, but the parts contain {}", seen.len()),
        )),
        _ => Ok(()),
    }
}

fn split_error(path: &Path, text: String) -> FormatError {
    FormatError::new(path, Problem::Split(text))
}
