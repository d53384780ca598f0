// Names that every program has, and guesses at what a wrong name was meant to be.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/program.h"

namespace flexc::front {

std::optional<ir::Op> ambient_of(std::string_view name); // score b h h_kv q_idx kv_idx q_row kv_row
std::optional<std::uint32_t> standard_size_of(std::string_view name);
// pi and inf; with qualified, what torch. and math. have too: nan, e, tau.
std::optional<double> number_named(std::string_view name, bool qualified);
// and_masks and or_masks: how they put masks together.
std::optional<ir::Op> combination_of(std::string_view name);
bool is_reserved(std::string_view name); // may not be declared
std::span<const std::string_view> reserved_names();

// The candidate that is at most a third of its letters away; empty when there is none.
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);
// q -> q_idx: what other programs call the ambient names.
std::string_view usual_name(std::string_view name);

} // namespace flexc::front
