#pragma once

#include <string>

#include "absl/status/status.h"
#include "native/base/status.h"

namespace millpond::tf {

// Converts TensorFlow's status. The codes have the same numbers. `while_doing`, like "restoring
// variables of /models/m/7", precedes the message.
inline base::Status FromTensorFlow(const absl::Status& status,
                                   const std::string& while_doing = "") {
  if (status.ok()) return {};
  std::string message(status.message());
  if (!while_doing.empty()) message = while_doing + ": " + message;
  return {static_cast<base::Code>(status.code()), std::move(message)};
}

// True if a reader failed for the bytes of its file, which it would do again. All else is of the
// disk, or of the process, such as one without file descriptors: the same file may be read a moment
// later.
inline bool IsOfContents(const absl::Status& read) {
  return absl::IsDataLoss(read) || absl::IsOutOfRange(read) || absl::IsInvalidArgument(read);
}

}  // namespace millpond::tf

// Returns from the enclosing function if the expression is an absl::Status that is not OK.
#define MILLPOND_RETURN_IF_TF_ERROR(expression, while_doing)                 \
  do {                                                                       \
    const absl::Status tf_status_of_step = (expression);                     \
    if (!tf_status_of_step.ok()) {                                           \
      return ::millpond::tf::FromTensorFlow(tf_status_of_step, while_doing); \
    }                                                                        \
  } while (false)
