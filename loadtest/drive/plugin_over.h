#pragma once

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
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
  const char* const path = std::getenv("PLUGIN_OVER");
  void* const library = path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_LOCAL);
  void* const get = library == nullptr ? nullptr : dlsym(library, "GetPjrtApi");
  if (get == nullptr) {
    const char* const error = path == nullptr ? "the variable is not set" : dlerror();
    std::fprintf(stderr, "PLUGIN_OVER must have the path of a PJRT plugin: %s\n", error);
    std::abort();
  }
  over = reinterpret_cast<const PJRT_Api* (*)()>(get)();
  PJRT_Api table{};
  std::memcpy(&table, over, std::min(over->struct_size, sizeof(table)));
  table.struct_size = std::min(over->struct_size, sizeof(table));
  return table;
}
