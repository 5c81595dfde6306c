//! The steady state allocates nothing, on any thread.

use gyrus_cpu::{
    Activation, Attention, Bytes, KvRow, KvStore, Matrix, Pool, Precision, Scratch, Span, Strided, attention,
    gate, matmul, rms_norm,
};
use gyrus_kernels::KvGroup;
use gyrus_kernels::call::Storage;
use gyrus_tensor::DType;
use gyrus_testkit::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

#[test]
fn the_steady_state_allocates_nothing() {
    let pool = Pool::new(3);
    let (n, k) = (96, 256);
    let weight = |dtype: DType, precision| {
        let bytes = vec![0; dtype.bytes_of_elems(n * k).unwrap()];
        Matrix::new(&pool, dtype, n, k, Bytes::from(bytes), precision).unwrap()
    };
    let fast = weight(DType::Q4_1, Precision::Fast);
    let exact = weight(DType::Q6_K, Precision::Exact);
    let floats = weight(DType::F16, Precision::Fast);
    let mut store =
        KvStore::new(KvGroup { layers: 1, kv_heads: 2, head_dim: 16, window: None }, 20, Storage::F16)
            .unwrap();
    let table: Vec<u32> = (0..20).collect();
    let params = Attention {
        layer: 0,
        heads: 4,
        scale: 0.25,
        span: Span::Causal,
        window: None,
        softcap: None,
        sinks: None,
    };
    let mut scratch = Scratch::new();
    let (x, mut normed, mut out) = (vec![0.5; 40 * k], vec![0.0; 40 * k], vec![0.0; 40 * 2 * n]);
    let (mut gated, mut attended) = (vec![0.0; 40 * n], vec![0.0; 40 * 64]);
    let rows: Vec<KvRow> = (600..640).map(|position| KvRow::causal(&table, position)).collect();

    let mut round = || {
        let before = ALLOCATOR.allocations();
        for _ in 0..50 {
            for m in [1, 40] {
                rms_norm(&pool, &x[..m * k], &x[..k], 1e-5, &mut normed[..m * k]);
                let out = &mut out[..m * 2 * n];
                matmul(&pool, &[&fast, &exact], &normed[..m * k], out, false, &mut scratch);
                gate(&pool, Activation::Silu, out, n, &mut gated[..m * n]);
                matmul(&pool, &[&floats], &normed[..m * k], &mut gated[..m * n], true, &mut scratch);
                let kv = Strided { data: &x, stride: 32 };
                store.write_rows(&pool, 0, &rows[..m], kv, kv);
                let q = Strided { data: &x, stride: 64 };
                attention(&pool, &store, &params, &rows[..m], q, &mut attended[..m * 64], &mut scratch);
            }
        }
        ALLOCATOR.allocations() - before
    };
    assert!(round() > 0, "the first round allocates its buffers, so the counter must be above zero");
    // A worker that has not run a task so far allocates its thread-local buffer later.
    assert!((0..50).any(|_| round() == 0), "each of 50 rounds allocated");
}
