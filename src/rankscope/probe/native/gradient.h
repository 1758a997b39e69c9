/* The rank's own gradient, looked at together with the loss. */

#ifndef RANKSCOPE_GRADIENT_H
#define RANKSCOPE_GRADIENT_H

#include "shortcut.h"

#define MOST_VALUES 65536 /* of a tensor that is read here */

static PyObject *EMPTY;

static int all_finite(const char *values, Py_ssize_t count, int kind) {
    /* Not finite: all bits of the exponent are set. The loops have no way out before their end: they are vectors. */
    int bad = 0;
    if (kind == 0) {
        const uint32_t *bits = (const uint32_t *)values;
        for (Py_ssize_t at = 0; at < count; at++) {
            bad |= (bits[at] & 0x7f800000u) == 0x7f800000u;
        }
    } else if (kind == 1) {
        const uint64_t *bits = (const uint64_t *)values;
        for (Py_ssize_t at = 0; at < count; at++) {
            bad |= (bits[at] & 0x7ff0000000000000u) == 0x7ff0000000000000u;
        }
    } else {
        const uint16_t *bits = (const uint16_t *)values, exponent = kind == 2 ? 0x7f80 : 0x7c00;
        for (Py_ssize_t at = 0; at < count; at++) {
            bad |= (bits[at] & exponent) == exponent;
        }
    }
    return !bad;
}

/* By the descriptor, as the type has it: no table of the type's is searched for the name, none need be in the caches. */
static PyObject *ask(Beat *beat, PyObject *tensor, int question) {
    PyObject *descriptor = beat->questions[question];
    if (Py_IS_TYPE(descriptor, &PyGetSetDescr_Type)) {
        PyGetSetDef *attribute = ((PyGetSetDescrObject *)descriptor)->d_getset;
        return attribute->get(tensor, attribute->closure);
    }
    if (Py_IS_TYPE(descriptor, &PyMethodDescr_Type)) {
        PyMethodDef *method = ((PyMethodDescrObject *)descriptor)->d_method;
        if (method->ml_flags == METH_NOARGS) {
            return method->ml_meth(tensor, NULL);
        }
    }
    if (PyCallable_Check(descriptor)) {
        return PyObject_Vectorcall(descriptor, &tensor, 1, NULL);
    }
    return NULL; /* a property in Python: another torch than those known */
}

static int is_true(PyObject *value) {
    Py_XDECREF(value); /* True lives on */
    return value == Py_True;
}

static unsigned long long whole_number(PyObject *value) {
    unsigned long long number = value != NULL && PyLong_CheckExact(value) ? PyLong_AsUnsignedLongLong(value) : 0;
    Py_XDECREF(value);
    return number;
}

/* Whether these are numbers that can be read from here, all of them finite. */
static int is_finite(Beat *beat, PyObject *tensor) {
    int kind = 0, finite = 0;
    if (beat->tensor == NULL || Py_TYPE(tensor) != beat->tensor) {
        return 0;
    }
    PyObject *dtype = ask(beat, tensor, DTYPE);
    while (kind < KINDS && beat->kinds[kind] != dtype) {
        kind++;
    }
    if (dtype != NULL && kind < KINDS && is_true(ask(beat, tensor, IS_CPU)) &&
        is_true(ask(beat, tensor, IS_CONTIGUOUS))) {
        unsigned long long count = whole_number(ask(beat, tensor, NUMEL));
        if (count > 0 && count <= MOST_VALUES) {
            const char *values = (const char *)(uintptr_t)whole_number(ask(beat, tensor, DATA_PTR));
            finite = values != NULL && all_finite(values, (Py_ssize_t)count, kind);
        }
    }
    Py_XDECREF(dtype);
    PyErr_Clear(); /* whatever cannot be read is looked at by others */
    return finite;
}

static PyObject *own_gradient(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *keywords) {
    Shortcut *shortcut = (Shortcut *)self;
    Beat *beat = shortcut->beat;
    PyObject *given = beat->losses;
    int usual = 0;
    if (!beat->full && given != Py_None && PyVectorcall_NARGS(nargsf) == 1 && PyTuple_CheckExact(args[0]) &&
        PyTuple_GET_SIZE(args[0]) > 0 && PyTuple_CheckExact(given) && PyTuple_GET_SIZE(given) > 0) {
        PyObject *losses = PyTuple_GET_ITEM(given, 0);
        Py_INCREF(given);
        usual = PyTuple_CheckExact(losses) && PyTuple_GET_SIZE(losses) == 1 &&
                is_finite(beat, PyTuple_GET_ITEM(args[0], 0)) && is_finite(beat, PyTuple_GET_ITEM(losses, 0)) &&
                given == beat->losses;
        Py_DECREF(given);
    }
    if (!usual) {
        return PyObject_Vectorcall(shortcut->usual, args, nargsf, keywords);
    }
    replace(&beat->losses, Py_None);
    replace(&beat->inputs, EMPTY);
    Py_RETURN_NONE;
}

#endif
