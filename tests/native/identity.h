#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/native/temporary_directory.h"

namespace millpond::testing {

inline std::string ReadFile(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// A key and its self-signed certificate for 127.0.0.1. `openssl` makes them.
struct Identity {
  explicit Identity(const std::string& name) {
    const TemporaryDirectory directory;
    const std::string key_path = directory.File("key.pem");
    const std::string certificate_path = directory.File("certificate.pem");
    const std::string command =
        "openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 1 "
        "-subj /CN=" +
        name + " -addext subjectAltName=IP:127.0.0.1 -keyout " + key_path + " -out " +
        certificate_path + " 2>/dev/null";
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    key = ReadFile(key_path);
    certificate = ReadFile(certificate_path);
  }

  std::string key;
  std::string certificate;
};

}  // namespace millpond::testing
