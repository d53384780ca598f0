// Every layout that keys and values may have, in one table. What is left of a layout is a class in
// templates/keys, for kernels and the CPU, and a reader of the caller's arrays in src/runtime.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "flexc/options.h"

namespace flexc::support {

enum class KeyAxis : std::uint8_t { entry, head, row, column };

struct KeyLayout {
    Layout layout;
    std::string_view name;
    std::span<const KeyAxis> axes; // of k and v
    std::string_view dims;         // of k
    // Keys of a batch entry are side by side, as queries of this layout are too. Of others each key
    // is looked up, and there is no backward.
    bool is_in_order;
    bool starts_at_end; // what QueryStart::automatic means
    // Of those that are not in order: what has the keys, why TMA and a backward do not read them,
    // and how a caller calls the rows of an entry.
    std::string_view things = {}, why_scattered = {}, row_count = {};
    std::string_view device_class = {}, device_header = {}; // in templates
    int axis(KeyAxis wanted) const;                         // negative: there is none
};

std::span<const KeyLayout> key_layouts(); // in the order of Layout
const KeyLayout& key_layout(Layout layout);

} // namespace flexc::support
