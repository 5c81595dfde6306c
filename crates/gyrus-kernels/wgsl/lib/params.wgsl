// The kernel's parameters, a struct PARAMS: immediates if the device has them, else a uniform at PARAMS_BINDING.
#if IMMEDIATES
var<immediate> params: PARAMS;
#else
@group(0) @binding(PARAMS_BINDING) var<uniform> params: PARAMS;
#endif
