//! Flash attention of many rows: head sizes, groups of heads, windows, prefixes, sequences and draft trees.

use super::paged::{Cache, paged};
use half::f16;

use crate::batch::{Batch, Inputs};
use crate::call::{COOPERATIVE_MEMORY, FlashCall, FlashTuning, Storage, Tile, push_tiles};
use crate::grid::case::{Case, CaseBuffer, largest};
use crate::grid::family::Point;
use crate::grid::noise::Noise;
use crate::kv::KvGroup;
use crate::shader::Rungs;

const DEFAULT: FlashTuning = FlashTuning {
    queries: None,
    keys: None,
    key_dims: None,
    value_keys: None,
    ahead: None,
    memory: None,
    cooperative: false,
    emulated: false,
};

const TUNINGS: [FlashTuning; 12] = [
    DEFAULT,
    FlashTuning { cooperative: true, ..DEFAULT },
    FlashTuning { cooperative: true, emulated: true, ..DEFAULT },
    FlashTuning { cooperative: true, ..DEFAULT },
    FlashTuning { cooperative: true, emulated: true, ..DEFAULT },
    FlashTuning { ahead: Some(true), ..DEFAULT },
    FlashTuning { queries: Some(64), ..DEFAULT },
    FlashTuning { keys: Some(16), ..DEFAULT },
    FlashTuning { queries: Some(16), keys: Some(128), ..DEFAULT },
    FlashTuning { key_dims: Some(16), value_keys: Some(4), ..DEFAULT },
    FlashTuning { key_dims: Some(16), value_keys: Some(32), ahead: Some(true), ..DEFAULT },
    FlashTuning { memory: Some(16 << 10), ..DEFAULT },
];

/// Cached prefixes and the rows that follow them.
const SEQUENCES: [&[(u32, u32)]; 4] = [
    &[(0, 37), (45, 20), (77, 1)],
    &[(3, 21)],
    &[(50, 64), (0, 5), (0, 2)],
    &[(200, 23), (31, 2), (0, 1), (96, 9)],
];

pub(super) fn case(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let head_dim: usize = point.of(&[64, 80, 96, 128, 256, 16, 32, 192, 240]);
    let (heads, kv_heads): (usize, usize) =
        point.of(&[(2, 2), (4, 2), (6, 2), (8, 2), (16, 2), (71, 1), (5, 1)]);
    let kv = point.of(&[Storage::F16, Storage::F32]);
    let window = point.of(&[0, 40, 1, 33, 7, 100]);
    let soft_cap = point.of(&[0.0, 0.0, 2.5]);
    let (causal, tree) = point.of(&[(true, false), (true, false), (false, false), (true, true)]);
    let sequences = point.of(&SEQUENCES);
    let tuning = point.of(&TUNINGS);
    let sinks = point.of(&[false, true]);
    let spec = KvGroup { layers: 1, kv_heads, head_dim, window: None };
    let lengths: Vec<u32> = sequences.iter().map(|(prefix, n)| prefix + n).collect();
    let rows: Vec<(usize, u32)> = sequences
        .iter()
        .enumerate()
        .flat_map(|(s, (prefix, n))| (*prefix..prefix + n).map(move |position| (s, position)))
        .collect();
    let stride = (heads + 2 * kv_heads) * head_dim;
    let mut call = FlashCall {
        n_heads: heads as u32,
        q_stride: stride as u32,
        scale: 1.0 / (head_dim as f32).sqrt(),
        window,
        soft_cap,
        causal,
        tree,
        sinks,
        paged: paged(&spec, kv, &lengths, rows.len()),
        tiles: 0,
    };
    let tiles = tiles(&call, tuning, sequences, &rows)?;
    call.tiles = tiles.len() as u32;
    let launch = call.launch(rungs, tuning).ok()?;
    let cooperative = launch.variant().name == "flash_cooperative";
    let seed = point.seed;
    let twin = move || {
        let mut noise = Noise::new(seed);
        let cache = Cache::new(&mut noise, spec, kv, &lengths);
        let qkv = noise.gaussians(rows.len() * stride);
        // Cooperative matrices multiply queries that are scaled and rounded to f16.
        let query_scale =
            if soft_cap == 0.0 { call.scale * std::f32::consts::LOG2_E } else { call.scale / soft_cap };
        let rounded = |q: &f32| match cooperative {
            true => f16::from_f32(q * query_scale).to_f32() / query_scale,
            false => *q,
        };
        let of_heads = noise.floats(heads, 6.0);
        let mut out = Vec::new();
        let mut branches: Vec<u64> = Vec::new();
        for (qkv, &(sequence, position)) in qkv.chunks_exact(stride).zip(&rows) {
            let (prefix, n) = sequences[sequence];
            branches.push(branch(position - prefix));
            let end = if causal { position + 1 } else { prefix + n };
            let near = |p: &u32| window == 0 || p.abs_diff(position) < window;
            let in_branch =
                |p: &u32| !tree || *p < prefix || branch(position - prefix) >> (p - prefix) & 1 == 1;
            let seen: Vec<usize> = (0..end).filter(near).filter(in_branch).map(|p| p as usize).collect();
            let q: Vec<f32> = qkv[..heads * head_dim].iter().map(rounded).collect();
            let scale = (call.scale, soft_cap);
            out.extend(cache.attend(&q, sequence, &seen, scale, sinks.then_some(&of_heads)));
        }
        // Scores are sums of up to 256 products in f32 and reach about 5: their error, which is that of a weight, stays
        // below 3e-6. Weights in f16 are within 2^-11.
        let most = if cooperative { 3e2 * largest(&out).max(1.0) } else { largest(&out) };
        let branches = branches.iter().flat_map(|b| [*b as u32, (*b >> 32) as u32]).collect();
        let mut buffers = cache.buffers(&qkv, &rows);
        buffers.extend([
            CaseBuffer::read("tiles", bytemuck::cast_slice(&tiles).to_vec()),
            CaseBuffer::read("branches", branches),
            CaseBuffer::floats("sinks", &of_heads),
            CaseBuffer::near("out", &out, |_| 3e-6 * most),
        ]);
        buffers
    };
    Some(Case {
        workgroup_bytes: match cooperative && !tuning.emulated {
            true => COOPERATIVE_MEMORY.into(),
            false => 32 << 10,
        },
        ..Case::new(format!("{call:?}, {tuning:?}, {sequences:?}"), launch, twin)
    })
}

/// The rows of its sequence that a node of a draft tree sees: two branches that part at the second node, its root, a
/// node that sees itself alone, and one that sees nothing.
fn branch(node: u32) -> u64 {
    match node {
        11 => 0,
        12 => 1 << 12,
        _ => (0..=node.min(63)).filter(|n| *n == 0 || n % 2 == node % 2).fold(0, |all, n| all | 1 << n),
    }
}

fn tiles(
    call: &FlashCall,
    tuning: FlashTuning,
    sequences: &[(u32, u32)],
    rows: &[(usize, u32)],
) -> Option<Vec<Tile>> {
    let positions: Vec<u32> = rows.iter().map(|(_, position)| *position).collect();
    let numbers: Vec<u32> = rows.iter().map(|(sequence, _)| *sequence as u32).collect();
    let tables: Vec<&[u32]> = vec![&[]; sequences.len()];
    let (tokens, lengths) = (vec![0; rows.len()], vec![0; sequences.len()]);
    let extents: Vec<u32> = sequences.iter().map(|(prefix, n)| prefix + n).collect();
    let batch = Batch {
        tokens: &tokens,
        positions: &positions,
        sequences: &numbers,
        kind: crate::RowKind::Prompt,
        logits: &[],
        tables: &tables,
        lengths: &lengths,
        records: &[],
        inputs: Inputs { extents: &extents, ..Inputs::default() },
    };
    let mut tiles = Vec::new();
    push_tiles(&batch, call.tile_rows(tuning).ok()?, (!call.causal).then_some(0), &mut tiles);
    if call.tree {
        tiles.iter_mut().for_each(|tile| tile.base = sequences[numbers[tile.first as usize] as usize].0);
    }
    Some(tiles)
}
