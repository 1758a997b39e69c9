/* Whether the loss is finite, and the rank's own gradient. */

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

/* The kind of a tensor's numbers; -1 where they cannot be read from here. */
static int kind_of(Beat *beat, PyObject *tensor) {
    int kind = 0;
    if (beat->tensor == NULL || Py_TYPE(tensor) != beat->tensor) {
        return -1;
    }
    PyObject *dtype = ask(beat, tensor, DTYPE);
    while (kind < KINDS && beat->kinds[kind] != dtype) {
        kind++;
    }
    Py_XDECREF(dtype);
    return dtype != NULL && kind < KINDS && is_true(ask(beat, tensor, IS_CPU)) ? kind : -1;
}

static const char *values_of(Beat *beat, PyObject *tensor) {
    return (const char *)(uintptr_t)whole_number(ask(beat, tensor, DATA_PTR));
}

/* Whether the pass is that of one loss, a finite number. */
static int has_finite_loss(Beat *beat, PyObject *given) {
    PyObject *losses = PyTuple_GET_ITEM(given, 0);
    int kind, finite = 0;
    if (PyTuple_CheckExact(losses) && PyTuple_GET_SIZE(losses) == 1) {
        PyObject *loss = PyTuple_GET_ITEM(losses, 0);
        if ((kind = kind_of(beat, loss)) >= 0 && whole_number(ask(beat, loss, NUMEL)) == 1) {
            const char *value = values_of(beat, loss);
            finite = value != NULL && all_finite(value, 1, kind);
        }
    }
    PyErr_Clear(); /* whatever cannot be read is looked at by others */
    return finite;
}

/* Whether these are `count` numbers of that kind that can be read from here, all of them finite. Count, kind and device
   are those of the parameter: the engine lets no other gradient come to it. */
static int is_finite(Beat *beat, PyObject *gradient, Py_ssize_t count, int kind) {
    int finite = 0;
    if (Py_TYPE(gradient) == beat->tensor && is_true(ask(beat, gradient, IS_CONTIGUOUS))) {
        const char *values = values_of(beat, gradient);
        finite = values != NULL && all_finite(values, count, kind);
    }
    PyErr_Clear();
    return finite;
}

static PyObject *own_gradient(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *keywords) {
    Shortcut *shortcut = (Shortcut *)self;
    Beat *beat = shortcut->beat;
    PyObject *given = beat->losses;
    if (beat->full || given == Py_None || !beat->loss_is_finite || PyVectorcall_NARGS(nargsf) != 1 ||
        !PyTuple_CheckExact(args[0]) || PyTuple_GET_SIZE(args[0]) == 0 ||
        !is_finite(beat, PyTuple_GET_ITEM(args[0], 0), shortcut->count, shortcut->kind) || given != beat->losses) {
        return PyObject_Vectorcall(shortcut->usual, args, nargsf, keywords);
    }
    beat->loss_is_finite = 0;
    replace(&beat->losses, Py_None);
    replace(&beat->inputs, EMPTY);
    Py_RETURN_NONE;
}

/* For the gradient of this parameter; the usual function itself where it cannot be read from here. */
static PyObject *make_own_gradient(PyObject *module, PyObject *args) {
    PyObject *beat, *usual, *parameter;
    if (!PyArg_ParseTuple(args, "O!OO", &BeatType, &beat, &usual, &parameter)) {
        return NULL;
    }
    Beat *state = (Beat *)beat;
    PyObject *tensor = PyObject_GetAttrString(parameter, "data");
    int kind = tensor == NULL ? -1 : kind_of(state, tensor);
    unsigned long long count = kind < 0 ? 0 : whole_number(ask(state, tensor, NUMEL));
    Py_XDECREF(tensor);
    PyErr_Clear();
    if (count == 0 || count > MOST_VALUES) {
        return Py_NewRef(usual);
    }
    Shortcut *made = (Shortcut *)make_shortcut(beat, usual, own_gradient);
    if (made != NULL) {
        made->count = (Py_ssize_t)count;
        made->kind = kind;
    }
    return (PyObject *)made;
}

#endif
