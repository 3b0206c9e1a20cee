#pragma once

#include <nanobind/nanobind.h>

#include "native/python/binding.h"
#include "native/rpc/http_answer.h"
#include "native/rpc/server.h"

// The parts of the server's binding that have files of their own.
namespace millpond::python {

// Add what concerns HTTP.
void AddHttp(nanobind::class_<rpc::RareCall>* call);
void AddHttp(nanobind::class_<rpc::Server>* server);

}  // namespace millpond::python
