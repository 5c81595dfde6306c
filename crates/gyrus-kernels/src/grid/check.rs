use super::case::{Case, CaseBuffer, Int8, Rule, UNTOUCHED};
use super::runner::Runner;
use crate::call::Storage;
use crate::scalar::{QuantizedRows, element, quantize_rows};

/// Words beyond the end of each buffer that no launch may write.
const GUARD: [u32; 8] = [UNTOUCHED; 8];

/// Runs a case and compares every word with the twin's. An error says where they differ.
pub fn check(runner: &mut dyn Runner, case: &Case) -> Result<(), String> {
    let kernels: Vec<&str> = case.steps.iter().map(|step| step.launch.variant.name.as_str()).collect();
    let title = format!("{} on {}: {}", kernels.join(", "), runner.name(), case.name);
    let buffers = case.buffers();
    let found = run(runner, case, &buffers).map_err(|error| format!("{title}: {error}"))?;
    for buffer in &buffers {
        compare(buffer, &buffers, &found).map_err(|error| format!("{title}: {error}"))?;
    }
    Ok(())
}

/// The buffers after the launches, with their guards.
fn run(runner: &mut dyn Runner, case: &Case, buffers: &[CaseBuffer]) -> Result<Vec<Vec<u32>>, String> {
    let mut found: Vec<Vec<u32>> = buffers.iter().map(|buffer| guarded(&buffer.before)).collect();
    for step in &case.steps {
        let mut places = Vec::new();
        for (slot, name) in step.launch.slots.iter().zip(&step.buffers) {
            let place = place(buffers, name)?;
            let (has, needs) = (4 * buffers[place].before.len() as u64, slot.bytes);
            if has < needs {
                return Err(format!("{name} has {has} bytes, {} needs {needs}", slot.name));
            }
            places.push(place);
        }
        let mut bound: Vec<Vec<u32>> =
            places.iter().map(|place| std::mem::take(&mut found[*place])).collect();
        runner.run(&step.launch, &mut bound).map_err(|error| error.to_string())?;
        for (place, words) in places.into_iter().zip(bound) {
            found[place] = words;
        }
    }
    Ok(found)
}

fn guarded(words: &[u32]) -> Vec<u32> {
    words.iter().chain(&GUARD).copied().collect()
}

fn place(buffers: &[CaseBuffer], name: &str) -> Result<usize, String> {
    let place = buffers.iter().position(|buffer| buffer.name == name);
    place.ok_or_else(|| format!("the case has no buffer '{name}'"))
}

fn compare(buffer: &CaseBuffer, all: &[CaseBuffer], found: &[Vec<u32>]) -> Result<(), String> {
    let words = &found[place(all, buffer.name)?];
    let after = guarded(&buffer.after);
    if words.len() != after.len() {
        return Err(format!("{} has {} words, not {}", buffer.name, words.len(), after.len()));
    }
    let bits = |from: usize| match (from..after.len()).find(|at| words[*at] != after[*at]) {
        Some(at) => Err(off(buffer, at, words, &after)),
        None => Ok(()),
    };
    match &buffer.rule {
        Rule::Bits => bits(0),
        Rule::Scratch(count) => bits(*count),
        Rule::Near(storage, tolerances) => near(buffer, *storage, tolerances, words, &after),
        Rule::Int8(rows) => {
            bits(rows.values.len() / 4)?;
            let scales = &found[place(all, rows.scales)?];
            int8(rows, words, scales).map_err(|error| format!("{}: {error}", buffer.name))
        }
    }
}

/// Says which word differs, and whether it is one that no launch may write.
fn off(buffer: &CaseBuffer, at: usize, found: &[u32], after: &[u32]) -> String {
    let beyond = if at >= buffer.after.len() { " (beyond the end)" } else { "" };
    let kept = if buffer.before.get(at) == Some(&after[at]) { " (not to be written)" } else { "" };
    let [f, e] = [found[at], after[at]].map(f32::from_bits);
    let name = buffer.name;
    format!("{name}[{at}]{beyond}{kept} is {:#x} ({f}), expected {:#x} ({e})", found[at], after[at])
}

fn near(
    buffer: &CaseBuffer,
    storage: Storage,
    tolerances: &[Option<f64>],
    found: &[u32],
    after: &[u32],
) -> Result<(), String> {
    let per_word = 4 / storage.bytes() as usize;
    let bits = |words: &[u32], at: usize| match storage {
        Storage::F32 => words[at],
        _ => (words[at / 2] >> (16 * (at % 2))) & 0xffff,
    };
    for at in 0..after.len() * per_word {
        if bits(found, at) == bits(after, at) {
            continue;
        }
        let Some(tolerance) = tolerances.get(at).copied().flatten() else {
            return Err(off(buffer, at / per_word, found, after));
        };
        let (f, e) = (element(found, storage, at), element(after, storage, at));
        // Both may be infinite, or zeros of either sign.
        if f != e && !is_within((f - e).abs(), tolerance) {
            let error = (f - e).abs();
            return Err(format!("{}[{at}] is {f}, expected {e}: {error:e} > {tolerance:e}", buffer.name));
        }
    }
    Ok(())
}

/// Whether an error is within its tolerance; NaN is not.
fn is_within<T: PartialOrd>(error: T, tolerance: T) -> bool {
    error <= tolerance
}

/// Scales are those of the values; int8 are the values over their scale, rounded; sums are those of the int8 found.
fn int8(rows: &Int8, q: &[u32], scales: &[u32]) -> Result<(), String> {
    let Int8 { values, cols, precision, errors, .. } = rows;
    let count = values.len() / cols;
    let found = QuantizedRows::from_words(*cols, q.to_vec(), scales.to_vec());
    let expected = quantize_rows(count, *cols, *cols, values);
    for (row, error) in (0..count).zip(errors) {
        let bytes = found.bytes(row);
        for block in 0..cols / 32 {
            let (scale, wanted) = (found.scale(row, block), expected.scale(row, block));
            let what = format!("block {block} of row {row}");
            if !is_within((scale - wanted).abs(), precision * wanted + error / 127.0) {
                return Err(format!("the scale of {what} is {scale}, expected {wanted}"));
            }
            let bytes = &bytes[32 * block..][..32];
            for (q, value) in bytes.iter().zip(&values[row * cols + 32 * block..]) {
                let (exact, error) = if wanted > 0.0 { (value / wanted, error / wanted) } else { (0.0, 0.0) };
                if !is_within((exact - f32::from(*q)).abs(), 0.5 + 256.0 * precision + 2.0 * error) {
                    return Err(format!("an int8 of {what} is {q}, expected {exact}"));
                }
            }
            let sums = [&bytes[..16], &bytes[16..]].map(|q| q.iter().map(|q| i16::from(*q)).sum::<i16>());
            let packed = u32::from(sums[0] as u16) | u32::from(sums[1] as u16) << 16;
            let sum = found.scales[2 * (row * cols / 32 + block) + 1];
            if sum != packed {
                return Err(format!("the sums of {what} are {sum:#x}, of its int8 {packed:#x}"));
            }
        }
    }
    Ok(())
}
