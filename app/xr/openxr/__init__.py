"""The OpenXR drivers: a headset (`driver`) and poses alone (`headless`), and the presenters.

`binding` loads the OpenXR loader and says in one line what is missing; `choices`, `bindings`,
`outcomes`, `session_life` and `xr_time` are pure and need neither.
"""
