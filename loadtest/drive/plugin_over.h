#pragma once

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "xla/pjrt/c/pjrt_c_api.h"

// A PJRT plugin over another one, whose path is in PLUGIN_OVER. Files in the directory
// PLUGIN_DIRECTORY tell it what to do.
//
// For the one source file of such a plugin. All is static, because a process may have several.

static const PJRT_Api* over;  // the plugin below, once it is loaded

static std::string PathOf(const char* name) {
  return std::string(std::getenv("PLUGIN_DIRECTORY")) + "/" + name;
}

static bool IsThere(const char* name) { return access(PathOf(name).c_str(), F_OK) == 0; }

static void HoldWhile(const char* name) {
  while (IsThere(name)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

// Loads the plugin below. Returns its table, in which the plugin above it puts calls of its own.
static PJRT_Api LoadOver() {
  void* const library = dlopen(std::getenv("PLUGIN_OVER"), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) std::abort();
  over = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"))();
  PJRT_Api table{};
  std::memcpy(&table, over, std::min(over->struct_size, sizeof(table)));
  table.struct_size = std::min(over->struct_size, sizeof(table));
  return table;
}
