// A weight matrix in planes (src/weights) of type WEIGHT: f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k,
// q4_k, q5_k, q6_k, iq4_nl, iq4_xs, mxfp4, or affineN_bf16 and affineN_f16 with N bits.
//
// Needs QUANTS_BINDING, HIGH_BINDING and SCALES_BINDING; types without high bits or scales do not have that binding. A
// row consists of units. A unit is what one invocation reads at a time: UNIT_VECTORS vectors of four elements.
//
//   weight_units(k)              units of a row of k elements
//   weight_values(row, unit, k) the unit's values in f32, equal to gyrus_tensor::dequantize: the product of a scale and
//                                a quant has fewer than 24 bits, so there is one rounding however a compiler contracts
//   load_block(row, unit, k)     the same before conversion to f32, for quantised types (lib/weights_blocks.wgsl). It
//                                consists of load_packed_block and unpack_block

#if WEIGHT == f32 || WEIGHT == f16 || WEIGHT == bf16
#include "lib/weights_plain.wgsl"
#else
#include "lib/weights_blocks.wgsl"
#endif
