// Selects the class of a layout that is known only at run time, as on the CPU.
#pragma once

#include "keys/in_order.h"
#include "keys/in_pages.h"

template <typename Class> struct KeyLayout {
    using Keys = Class;
};
// Returns visit(KeyLayout<the class>()). layout: KeyTable::layout.
template <typename Visit> FLEXC_SHARED auto with_key_layout(int layout, const Visit& visit) {
    switch (layout) {
    case KeysInPages::kLayout: return visit(KeyLayout<KeysInPages>());
    default: return visit(KeyLayout<KeysInOrder>());
    }
}
