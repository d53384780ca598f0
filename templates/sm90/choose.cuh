// One of two types, by a condition.
#pragma once

namespace sm90 {

template <bool kFirst, typename First, typename Second> struct Choice {
    using Type = First;
};
template <typename First, typename Second> struct Choice<false, First, Second> {
    using Type = Second;
};
template <bool kFirst, typename First, typename Second>
using Choose = typename Choice<kFirst, First, Second>::Type;

} // namespace sm90
