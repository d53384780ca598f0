// The MOD that most sub-commands take: a file, `-`, the name of a library mod, or -e 'expression'.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flexc/attention_call.h"
#include "flexc/command_line.h"
#include "flexc/compile.h"

namespace flexc::cli {

struct ModOption {
    std::string mod;
    std::string expression;
    std::string mask;
    std::string sink;
    std::vector<std::string> buffers;
    std::vector<std::string> params;
};

struct ModText {
    std::string text;
    CompileOptions options; // source_name, mask_mod, sink, buffers and params are filled
    std::vector<std::pair<std::string, double>> param_values;
};

void add_mod_options(CommandLine command, ModOption& option, bool with_params);
ModText load_mod(const ModOption& option);

// "slopes: f32[H] grad"
BufferDeclaration parse_buffer(const std::string& text);
// "N=V" to its two parts; what names the option in the usage error.
std::pair<std::string, std::string> split_assignment(const std::string& text,
                                                     std::string_view what);
double parse_number(const std::string& text, std::string_view what);

DType parse_element_type(const std::string& text); // f32, f16 or bf16
DType parse_narrow_type(const std::string& text);  // e4m3, e5m2 or i8
Device parse_device(const std::string& text);      // auto, cpu, cuda, cuda:N
std::string describe(Device device);
ForwardKernel parse_forward_kernel(const std::string& text); // auto, generic, specialized
BackwardKernel
parse_backward_kernel(const std::string& text);        // auto, fused, split, generic, specialized
TileSource parse_tile_source(const std::string& text); // auto, ranges, maps
GradientType parse_gradient_type(const std::string& text); // f32, buffer
OutputType parse_output_type(const std::string& text);     // input, f32

// Refuses a --param that the program does not have. Warnings are not printed: compile() logs them.
Signature signature_of(const ModText& mod);

} // namespace flexc::cli
