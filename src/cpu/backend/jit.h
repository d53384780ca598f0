// LLVM IR text to machine code in this process.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "cpu/backend_table.h"

namespace flexc::cpu {

// Owns the machine code of one program; code lives as long as the module.
class JitModule {
  public:
    virtual ~JitModule() = default;
    virtual void* find(const char* name) const = 0; // nullptr: no such function

    // nullptr on failure, with the reason in `error`. compile() also gives the relocatable object,
    // which load() takes on a machine with the same processor and LLVM. It asks `stop` between
    // LLVM's passes; code generation is one pass.
    static std::unique_ptr<JitModule> compile(std::string_view text, const StopQuery& stop,
                                              std::string& object, std::string& error);
    static std::unique_ptr<JitModule> load(std::string_view object, std::string& error);
};

// LLVM's version, the processor's name and its features.
std::string jit_description();

} // namespace flexc::cpu
