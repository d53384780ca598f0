// The class of a layout that is known at run time alone, as on the CPU.
#pragma once

#include "keys/in_order.h"
#include "keys/in_pages.h"

template <typename Class> struct KeyLayout {
    using Keys = Class;
};
// What visit(KeyLayout<the class>()) gives. layout: KeyTable::layout.
template <typename Visit> FLEXC_SHARED auto with_key_layout(int layout, const Visit& visit) {
    switch (layout) {
    case KeysInPages::kLayout: return visit(KeyLayout<KeysInPages>());
    default: return visit(KeyLayout<KeysInOrder>());
    }
}
