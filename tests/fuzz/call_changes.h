// What is made of calls that were right, for the target of the C interface.
#pragma once

#include <vector>

#include "call_arguments.h"

namespace flexc::fuzz {

using Named = std::vector<flexc_named_tensor>;
inline flexc_named_tensor named(const char* name, const flexc_tensor* tensor) {
    auto result = sized<flexc_named_tensor>();
    result.name = name;
    result.tensor = tensor;
    return result;
}

// One field more that is unusual or wrong; a declaration among them stays in `buffer` or `param`.
void change_options(Arguments& arguments, flexc_compile_options& options,
                    flexc_buffer_declaration& buffer, flexc_param_declaration& param,
                    const char* const* dims);
// Whether the plan must be refused now.
bool change_plan(Arguments& arguments, flexc_sizes& sizes, flexc_plan_options& options,
                 flexc_param_value& cap, Named& buffers);
// Something that forward() must refuse.
void break_launch(Arguments& arguments, const flexc_kernel*& kernel, const flexc_plan*& plan,
                  flexc_backward_tensors& call, Named& buffers, flexc_workspace& workspace);

} // namespace flexc::fuzz
