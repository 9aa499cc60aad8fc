/*
 * The entry points of tvm_ffi.c as built-in functions of Python. A torch tensor is looked at through
 * DLPack's exchange API, and no object is made of it on the way, which is what most of a call over the
 * tvm_ffi module costs. python/kvcanary/_builtin.py makes the functions.
 *
 * No header of Python's is needed: what is called here is part of its stable ABI since 3.10, and weak,
 * so that the library loads without Python. A call that fails raises without saying why: the package
 * makes it again over ctypes, which does.
 */
#include "kvcanary.h"

#if __has_include(<tvm/ffi/c_api.h>)
#include <stddef.h>
#include <tvm/ffi/c_api.h>

typedef struct _object PyObject;

PyObject *PyObject_Type(PyObject *object);
PyObject *PyTuple_GetItem(PyObject *tuple, ptrdiff_t index);
long long PyLong_AsLongLong(PyObject *object);
void *PyLong_AsVoidPtr(PyObject *object);
double PyFloat_AsDouble(PyObject *object);
PyObject *PyErr_Occurred(void);
void PyErr_SetString(PyObject *type, const char *message);
void Py_IncRef(PyObject *object);
void Py_DecRef(PyObject *object);
void *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *state);
#pragma weak PyObject_Type
#pragma weak PyTuple_GetItem
#pragma weak PyLong_AsLongLong
#pragma weak PyLong_AsVoidPtr
#pragma weak PyFloat_AsDouble
#pragma weak PyErr_Occurred
#pragma weak PyErr_SetString
#pragma weak Py_IncRef
#pragma weak Py_DecRef
#pragma weak PyEval_SaveThread
#pragma weak PyEval_RestoreThread

enum { MOST_ARGUMENTS = 40 };

/* What a built-in function is made of. Its 'self' is a tuple: the address of one, and what that is
 * in, so that it lives as long as the function. */
struct builtin {
	int (*entry)(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result);
	int (*tensor_of)(void *object, DLTensor *tensor); /* of torch's DLPackExchangeAPI */
	int (*stream_on)(DLDeviceType type, int32_t device, void **stream); /* the same */
	PyObject *none, *yes, *no, *int_type, *float_type, *error_type;
};

KVC_API PyObject *kvc__python_call(PyObject *self, PyObject *const *args, ptrdiff_t count);

/* One argument; a tensor goes to *tensor. Returns nonzero with Python's error set. */
static int convert(const struct builtin *b, PyObject *object, TVMFFIAny *argument, DLTensor *tensor)
{
	PyObject *type;

	*argument = (TVMFFIAny){ .type_index = kTVMFFINone };
	if (object == b->none)
		return 0;
	if (object == b->yes || object == b->no) {
		argument->type_index = kTVMFFIBool;
		argument->v_int64 = object == b->yes;
		return 0;
	}
	type = PyObject_Type(object);
	Py_DecRef(type); /* the object keeps it */
	if (type == b->int_type) {
		argument->type_index = kTVMFFIInt;
		argument->v_int64 = PyLong_AsLongLong(object);
		return argument->v_int64 == -1 && PyErr_Occurred();
	}
	if (type == b->float_type) {
		argument->type_index = kTVMFFIFloat;
		argument->v_float64 = PyFloat_AsDouble(object);
		return 0;
	}
	argument->type_index = kTVMFFIDLTensorPtr;
	argument->v_ptr = tensor;
	return b->tensor_of(object, tensor);
}

/* In place of None, the last argument: the current stream of the first tensor on CUDA. */
static int fill_in_stream(const struct builtin *b, TVMFFIAny *args, ptrdiff_t count)
{
	TVMFFIAny *last = &args[count - 1];
	ptrdiff_t i;

	for (i = 0; i < count && last->type_index == kTVMFFINone; i++) {
		const DLTensor *tensor = (const DLTensor *)args[i].v_ptr;

		if (args[i].type_index != kTVMFFIDLTensorPtr ||
		        tensor->device.device_type != kDLCUDA)
			continue;
		last->type_index = kTVMFFIOpaquePtr;
		return b->stream_on(kDLCUDA, tensor->device.device_id, &last->v_ptr);
	}
	return 0;
}

/* NULL, with Python's error set. */
static PyObject *python_error(const struct builtin *b, const char *message)
{
	if (!PyErr_Occurred())
		PyErr_SetString(b->error_type, message);
	return NULL;
}

/* A function of Python's kind METH_FASTCALL. */
PyObject *kvc__python_call(PyObject *self, PyObject *const *args, ptrdiff_t count)
{
	const struct builtin *b =
	        (const struct builtin *)PyLong_AsVoidPtr(PyTuple_GetItem(self, 0));
	TVMFFIAny given[MOST_ARGUMENTS], result;
	DLTensor tensors[MOST_ARGUMENTS];
	void *state;
	int status;
	ptrdiff_t i;

	if (count < 1 || count > MOST_ARGUMENTS)
		return python_error(b, "kvcanary: no such number of arguments");
	for (i = 0; i < count; i++)
		if (convert(b, args[i], &given[i], &tensors[i]))
			return python_error(b, "kvcanary: an argument of another type");
	if (fill_in_stream(b, given, count))
		return python_error(b, "kvcanary: no current stream");
	state = PyEval_SaveThread();
	status = b->entry(NULL, given, (int32_t)count, &result);
	PyEval_RestoreThread(state);
	if (status)
		return python_error(b, "kvcanary: refused");
	Py_IncRef(b->none);
	return b->none;
}
#endif
