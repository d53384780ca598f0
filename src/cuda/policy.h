// Features of a kernel as policy types of mod.cuh. Each has a default in templates/policies for a
// program without the feature, which applies unless mod.cuh names another.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cuda/expressions.h"
#include "support/text.h"

namespace flexc::cuda {

// Text of a static member function; the signature is without "static __device__" and what goes with
// it.
std::string member_function(std::string_view signature, std::string_view statements);
std::string member_function(std::string_view signature, const Body& body);
// "int NAME(int i)", which gives the numbers to kernels' constants.
std::string numbers_function(std::string_view name, const std::vector<int>& values);

class Policy {
  public:
    explicit Policy(std::string_view name) : name_(name) {}

    // Members that equal those of the default are omitted; most defaults are zero or false.
    void constant(std::string_view name, bool value, bool by_default = false) {
        if (value != by_default) add("bool", name, value);
    }
    void constant(std::string_view name, int value, int by_default = 0) {
        if (value != by_default) add("int", name, value);
    }
    // Adds the text of members that differ from the default.
    void member(std::string_view text) { members_ += text; }
    void function(std::string_view signature, const Body& body) {
        members_ += member_function(signature, body);
    }

    // Empty if nothing differs from the default.
    std::string text() const;

  private:
    void add(std::string_view type, std::string_view name, auto value) {
        members_ += formatted("    static constexpr {} {} = {};\n", type, name, value);
    }

    std::string name_, members_;
};

} // namespace flexc::cuda
