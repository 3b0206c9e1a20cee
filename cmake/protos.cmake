# Compiles all files of protos/ into one descriptor set, serving/base/messages.binpb, which
# serving/base/compiled_protos.py loads. The set lies beside its module and not below build/, so that
# an editable install, a wheel and the unit tests of a plain checkout find it at the same place.
#
# Included by CMakeLists.txt. Also a script, for a checkout that is not built: cmake -P cmake/protos.cmake
cmake_minimum_required(VERSION 3.25)

get_filename_component(repository ${CMAKE_CURRENT_LIST_DIR} DIRECTORY)
set(MILLPOND_DESCRIPTOR_SET ${repository}/serving/base/messages.binpb)
file(GLOB_RECURSE MILLPOND_PROTOS ${repository}/protos/*.proto)

set(is_current TRUE)
foreach(source IN LISTS MILLPOND_PROTOS ITEMS ${CMAKE_CURRENT_LIST_FILE})
  if(${source} IS_NEWER_THAN ${MILLPOND_DESCRIPTOR_SET})  # also if the set is missing
    set(is_current FALSE)
  endif()
endforeach()

if(NOT is_current)
  find_program(PROTOC protoc)
  if(NOT PROTOC)
    message(FATAL_ERROR "protoc is not installed: apt-get install protobuf-compiler")
  endif()
  # Renamed into place, because two processes may compile at the same time.
  string(RANDOM LENGTH 12 suffix)
  execute_process(
    COMMAND ${PROTOC} --proto_path=${repository}/protos
            --descriptor_set_out=${MILLPOND_DESCRIPTOR_SET}.${suffix} ${MILLPOND_PROTOS}
    COMMAND_ERROR_IS_FATAL ANY)
  file(RENAME ${MILLPOND_DESCRIPTOR_SET}.${suffix} ${MILLPOND_DESCRIPTOR_SET})
endif()
