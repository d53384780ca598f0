// What layouts of keys have in common, for device and host. Each has a class that says where the
// keys of a request lie: in_order.h, in_pages.h; all.h lists them.
#pragma once

#include "common/host_device.h"

// Arguments of a layout beside the records of requests. Its class defines what they mean.
struct KeyTable {
    const int* numbers; // of all requests, those of one from Sequence::first_number on
    int size;
    int layout; // kLayout of the class
};
// Returns the table that a kernel's argument words describe.
FLEXC_SHARED KeyTable key_table(const int* numbers, long long size) {
    return {numbers, static_cast<int>(size), 0};
}

// An entry of the first dim of k and v, and a row of it.
struct KeyPlace {
    int entry, row;
};

// Keys that lie side by side: `count` rows of an entry from `row` on.
struct KeyRun {
    long long entry, row;
    int count;
};
