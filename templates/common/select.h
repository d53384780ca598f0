// std::conditional_t, whose header NVRTC does not have.
#pragma once

template <bool kFirst, typename First, typename Second> struct SelectedType {
    using Type = First;
};
template <typename First, typename Second> struct SelectedType<false, First, Second> {
    using Type = Second;
};
template <bool kFirst, typename First, typename Second>
using Select = typename SelectedType<kFirst, First, Second>::Type;
