// The options of a compile, from the dict that flexc.compile makes of its arguments.
#pragma once

#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "flexc/flexc_c.h"
#include "object.h"

namespace flexc::python {

// Holds the texts that the options point to, and what is logged meanwhile.
class CompileOptions {
  public:
    CompileOptions() = default;
    CompileOptions(const CompileOptions&) = delete;
    CompileOptions& operator=(const CompileOptions&) = delete;

    // None: the defaults. false: there is an exception.
    bool read(PyObject* dict);
    const flexc_compile_options* get() const { return &options_; }

    // Returns what was logged, as a list of (level, text).
    Object messages() const;

  private:
    bool read_value(const std::string& name, PyObject* value);
    bool read_buffers(PyObject* sequence);
    bool read_params(PyObject* sequence);
    const char* keep(PyObject* text);
    static void write(void* user, int32_t level, const char* text, size_t length);

    flexc_compile_options options_ = {};
    std::deque<std::string> texts_;
    std::deque<std::vector<const char*>> dims_;
    std::vector<flexc_buffer_declaration> buffers_;
    std::vector<flexc_param_declaration> params_;
    std::mutex mutex_; // of messages_: kernels are compiled by many threads
    std::vector<std::pair<int32_t, std::string>> messages_;
};

} // namespace flexc::python
