#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "native/base/status.h"
#include "xla/pjrt/c/pjrt_c_api.h"

// Declares `variable`, the zeroed arguments of the function `name` of the PJRT C API, with the size
// by which a plugin knows the fields that this program knows.
#define MILLPOND_PJRT_ARGS(name, variable) \
  name##_Args variable{};                  \
  variable.struct_size = name##_Args_STRUCT_SIZE

// True if the plugin of `api` has the function `name`. A plugin that is older than the header ends
// its table earlier.
#define MILLPOND_PJRT_HAS(api, name) \
  ((api)->struct_size >= offsetof(PJRT_Api, name) + sizeof((api)->name) && (api)->name != nullptr)

namespace millpond::pjrt {

// A device that ends no copy for so long is gone.
constexpr int64_t kStallNs = 30'000'000'000;

// The functions of a plugin: https://openxla.org/xla/pjrt/cpp_api_overview. A plugin is never
// unloaded, because plugins start threads that do not end.
//
// Thread: any, because nothing in it changes.
class Api {
 public:
  explicit Api(const PJRT_Api* table) : table_(table) {}
  const PJRT_Api* operator->() const { return table_; }

  // Frees `error` and returns it as a status, whose message begins with `while_doing`. A code that
  // gRPC lacks becomes INTERNAL. OK if `error` is null.
  base::Status ToStatus(PJRT_Error* error, const std::string& while_doing) const;
  // Waits until `event` has happened, frees it, and returns its error. OK if `event` is null.
  base::Status Await(PJRT_Event* event, const std::string& while_doing) const;
  // The same within `timeout_ns`, with the event's error in `*status`. Returns false if it has not
  // happened by then, as of a device that is gone: it is never freed then, because it may happen
  // later. A plugin without callbacks is waited for.
  bool AwaitFor(PJRT_Event* event, int64_t timeout_ns, const char* while_doing,
                base::Status* status) const;
  // Says whether `event` has happened, without a wait. True if it is null.
  base::StatusOr<bool> HasHappened(PJRT_Event* event) const;
  // Frees `event`, which may be null.
  void Free(PJRT_Event* event) const;

 private:
  const PJRT_Api* table_;
};

// The name of what describes a GPU to a compiler, as an option and as an attribute of a topology.
inline constexpr std::string_view kTargetConfig = "target_config";

// Returns an option of a client or of a topology without its value. Borrows `name`.
inline PJRT_NamedValue NamedValue(std::string_view name) {
  PJRT_NamedValue value{};
  value.struct_size = PJRT_NamedValue_STRUCT_SIZE;
  value.name = name.data();
  value.name_size = name.size();
  value.value_size = 1;
  return value;
}

// Returns a program to compile. Borrows `hlo`, a serialized xla.HloModuleProto, which the API takes
// as writable.
inline PJRT_Program HloProgram(std::string* hlo) {
  static constexpr std::string_view kFormat = "hlo";
  PJRT_Program program{};
  program.struct_size = PJRT_Program_STRUCT_SIZE;
  program.code = hlo->data();
  program.code_size = hlo->size();
  program.format = kFormat.data();
  program.format_size = kFormat.size();
  return program;
}

}  // namespace millpond::pjrt

// Returns from the enclosing function if `expression`, a PJRT_Error*, is not null.
#define MILLPOND_RETURN_IF_PJRT_ERROR(api, expression, while_doing) \
  MILLPOND_RETURN_IF_ERROR((api).ToStatus((expression), (while_doing)))
