// The kernel's parameters, PARAMS, as immediates or, where a device has none, as a uniform at PARAMS_BINDING.
#if IMMEDIATES
var<immediate> params: PARAMS;
#else
@group(0) @binding(PARAMS_BINDING) var<uniform> params: PARAMS;
#endif
