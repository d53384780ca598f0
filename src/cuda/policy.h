// Features of a kernel as types of mod.cuh. Each has a default in templates/policies, whose members
// are those of a program without it, and which mod.cuh stands for wherever it names no other.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cuda/expressions.h"
#include "support/text.h"

namespace flexc::cuda {

// A static function of a struct; the signature is without what comes before its type.
std::string member_function(std::string_view signature, std::string_view statements);
std::string member_function(std::string_view signature, const Body& body);
// "int NAME(int i)", which gives the numbers to kernels' constants.
std::string numbers_function(std::string_view name, const std::vector<int>& values);

class Policy {
  public:
    explicit Policy(std::string_view name) : name_(name) {}

    // Members that equal those of the default are left out. Most of these are zero or false.
    void constant(std::string_view name, bool value, bool by_default = false) {
        if (value != by_default) add("bool", name, value);
    }
    void constant(std::string_view name, int value, int by_default = 0) {
        if (value != by_default) add("int", name, value);
    }
    // Text of members that the default has otherwise.
    void member(std::string_view text) { members_ += text; }
    void function(std::string_view signature, const Body& body) {
        members_ += member_function(signature, body);
    }

    // "": nothing differs from the default.
    std::string text() const;

  private:
    void add(std::string_view type, std::string_view name, auto value) {
        members_ += formatted("    static constexpr {} {} = {};\n", type, name, value);
    }

    std::string name_, members_;
};

} // namespace flexc::cuda
