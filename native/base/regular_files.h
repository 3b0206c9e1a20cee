#pragma once

#include <string>

#include "native/base/status.h"

namespace millpond::base {

// Checks that `path` can be read without a wait for another process. Returns FAILED_PRECONDITION
// with the actual type if it is a pipe, a socket or a device. Returns OK if it does not exist: its
// reader reports that. Follows symbolic links. Opens nothing, because opening a pipe may wait for
// ever.
Status CheckRegularFile(const std::string& path);

// Checks `directory` and everything below it in the same way. Follows a link to a directory if the
// link lies in `directory` itself, as `variables` may. Does not follow links further down: they may
// form a circle.
Status CheckRegularFiles(const std::string& directory);

}  // namespace millpond::base
