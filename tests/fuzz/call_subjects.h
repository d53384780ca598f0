// Calls of one subject, from a compile to what it frees; they leave nothing behind.
#pragma once

#include "call_arguments.h"

namespace flexc::fuzz {

void call_with_requests(Arguments& arguments); // ragged and paged layouts
void merge_results(Arguments& arguments);
void call_with_ranks(Arguments& arguments); // shards, and a plan of one rank

} // namespace flexc::fuzz
