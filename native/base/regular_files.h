#pragma once

#include <string>

#include "native/base/status.h"

namespace millpond::base {

// Whether `path` can be read without waiting for another process: FAILED_PRECONDITION with what it
// is instead if it is a pipe, a socket or a device. OK for what does not exist: its reader says so.
// Symbolic links are followed. Opens nothing: opening a pipe may wait for ever.
Status CheckRegularFile(const std::string& path);

// The same for all that lies in `directory` and below. Links to directories are followed one step
// from `directory` (as with `variables`), and not further: they may lead round in a circle.
Status CheckRegularFiles(const std::string& directory);

}  // namespace millpond::base
